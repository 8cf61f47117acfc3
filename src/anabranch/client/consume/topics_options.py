"""The arguments of a consumer of several topics."""

from __future__ import annotations

from typing import Any, Literal

from anabranch.arguments import refuse_unknown
from anabranch.client.consume.arguments import QUEUES_ONLY, QueueArguments
from anabranch.client.options import one_of
from anabranch.errors import InvalidConfigurationError

TopicsKind = Literal["queue", "stream"]


def topics_arguments(given: QueueArguments, kind: TopicsKind) -> dict[str, Any]:
    """The arguments for the consumer of each topic; raises for one that the kind does not have."""
    one_of("kind", kind, TopicsKind)
    refuse_unknown(given, QueueArguments)
    for name in QUEUES_ONLY:
        if kind == "stream" and name in given:
            raise InvalidConfigurationError(f'{name} needs kind="queue"')
    return dict(given)
