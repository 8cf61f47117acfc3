"""Opening and closing producers and consumers: their log, and bounds of the strings that a client sends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import astuple
from typing import Any

from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.wire.attachments import Attached
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.services import Services
from anabranch.errors import (
    MetadataError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from anabranch.model.names import TopicName
from anabranch.protocol.encryption import EncryptionRequiredError
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import ENCRYPTION_REQUIRED

METADATA_BYTES_MAX = 1024


async def open_log(services: Services, name: TopicName, *, create: bool) -> ServedLog:
    """Open a classic topic, which is created on first use if allowed, or a segment that the layout lists.

    A segment that a change has made but not committed may not be opened yet: a message written to it now
    could overtake a message of the same key that its parent still takes.
    """
    if name.is_scalable:
        raise NotAllowedError(f"{name} is a scalable topic; attach to its segments")
    if not name.is_segment:
        return await services.classic.open(name, create=create)
    assert name.segment is not None
    record = await services.records.load(name.topic)
    listed = record.segments.get(name.segment.id)
    if listed is None or (listed.hash_range.start, listed.hash_range.end) != astuple(name.segment.range):
        raise TopicNotFoundError(f"{name.topic} has no segment {name.segment}")
    segment = services.logs.get(name)
    if segment is None:
        if listed.store not in services.logs.stores.opened:
            raise ServiceNotReadyError(f"{name} is not served by this broker; look it up again")
        raise ServiceNotReadyError(f"{name} is being created; try again soon")
    segment.use.splits = listed.entry_bucket_splits
    return segment


async def check_known(services: Services, name: TopicName, subscription: str) -> None:
    """SubscriptionNotFoundError if there is no such subscription and the topic creates none on first use."""
    if services.policies.of(name).creates_subscriptions:
        return
    if name.is_segment or name.is_scalable:
        known = await services.records.load_subscription(name.topic, subscription) is not None
    else:
        log = services.logs.get(name)
        known = log is not None and subscription in log.subscriptions
    if not known:
        raise SubscriptionNotFoundError(
            f"{name} has no subscription {subscription}, and none is created on first use; create it first"
        )


def check_encryption(services: Services, name: TopicName) -> None:
    """Raise EncryptionRequiredError if the topic takes no readable messages."""
    if services.policies.of(name).encryption_required:
        raise EncryptionRequiredError(f"{ENCRYPTION_REQUIRED}{name}; give the producer an encryption key")


def metadata_of(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    """Return the properties of a producer or consumer. Their size is limited: the broker keeps them."""
    metadata = {pair.key: pair.value for pair in pairs}
    if sum(len(key) + len(value) for key, value in metadata.items()) > METADATA_BYTES_MAX:
        raise MetadataError(f"metadata must not be longer than {METADATA_BYTES_MAX} characters")
    return metadata


def attached_consumer(connection: ServerConnection, consumer_id: int) -> Attached:
    """Return the consumer of this number. Raises MetadataError if the connection has none."""
    attached = connection.consumers.get(consumer_id)
    if attached is None:
        raise MetadataError(f"consumer {consumer_id} is not known")
    return attached


def close_once_begun(
    connection: ServerConnection, what: str, number: int, close: Callable[[], None]
) -> Coroutine[Any, Any, None] | None:
    """Close a producer or consumer, even one that is still being made.

    One that is not known yet may have come in the same read. The task that makes it has begun when the
    returned coroutine runs.
    """
    known = connection.producer_logs if what == "producer" else connection.consumers
    if number in known or connection.openings.cancel(what, number):
        close()
        return None

    async def close_late() -> None:
        connection.openings.cancel(what, number)
        close()

    return close_late()
