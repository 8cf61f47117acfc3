"""The arguments of a consumer of several topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from anabranch.aio import Backoff
from anabranch.client.options import DeadLetter, QueueArguments, Seconds, one_of, refuse_unknown
from anabranch.errors import InvalidConfigurationError

TopicsKind = Literal["queue", "stream"]


class TopicsArguments(QueueArguments, total=False):
    """More arguments of a consumer of several topics; `subscribe_queue` describes them."""

    name: str | None
    receiver_queue_size: int
    """For each topic."""
    ack_group_time: Seconds
    ack_receipts: bool
    subscription_properties: Mapping[str, str] | None
    dead_letter: DeadLetter | None
    redelivery: Backoff
    """This and the next arguments, and `order`, are for queues."""
    processing_timeout: Seconds | None
    ack_group_size: int
    priority: int


QUEUES_ONLY = ("order", "redelivery", "processing_timeout", "ack_group_size", "priority")


def topics_arguments(given: TopicsArguments, kind: TopicsKind) -> dict[str, Any]:
    """The arguments for the consumer of each topic; raises for one that the kind does not have."""
    one_of("kind", kind, TopicsKind)
    refuse_unknown(given, TopicsArguments)
    for name in QUEUES_ONLY:
        if kind == "stream" and name in given:
            raise InvalidConfigurationError(f'{name} needs kind="queue"')
    return dict(given)
