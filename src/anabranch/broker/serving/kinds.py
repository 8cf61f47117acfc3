"""The types of a subscription: how each reads the log, and which consumers may share one."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.broker.dispatch.selectors import bucket_boundaries, sticky_ranges
from anabranch.broker.serving.keyed_reading import KeyedReading
from anabranch.broker.serving.reading import OrderedReading, Reading, ReadPath
from anabranch.broker.serving.shared_reading import SharedReading
from anabranch.errors import ConsumerAssignError, ConsumerBusyError
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb

Kind = int
"""A CommandSubscribe.SubType."""


def kind_name(kind: Kind) -> str:
    """How Pulsar spells a subscription type."""
    return pb.CommandSubscribe.SubType.Name(pb.CommandSubscribe.SubType.ValueType(kind))


def make_reading(path: ReadPath, kind: Kind, meta: pb.KeySharedMeta) -> Reading:
    """The read strategy for the first consumer of a subscription."""
    if kind == pb.CommandSubscribe.Shared:
        return SharedReading(path)
    if kind != pb.CommandSubscribe.Key_Shared:
        return OrderedReading(path, failover=kind == pb.CommandSubscribe.Failover)
    if meta.entryBucketDispatch:
        return KeyedReading(path, boundaries=bucket_boundaries(_pairs(meta)))
    return KeyedReading(path, sticky=meta.keySharedMode == pb.STICKY)


def check_fits(name: str, reading: Reading, meta: pb.KeySharedMeta) -> None:
    """Raise unless one more consumer with this `meta` may read as the connected consumers of `name` do."""
    if isinstance(reading, OrderedReading) and not reading.failover:
        raise ConsumerBusyError(f"subscription {name} has an exclusive consumer; close it first")
    if isinstance(reading, KeyedReading):
        buckets = reading.boundaries
        if meta.entryBucketDispatch != (buckets is not None):
            raise ConsumerBusyError(f"subscription {name} is in use with another kind of dispatch")
        if buckets is not None:
            if bucket_boundaries(_pairs(meta)) != buckets:
                raise ConsumerAssignError(f"subscription {name} is in use with other buckets")
        elif (meta.keySharedMode == pb.STICKY) != reading.sticky:
            raise ConsumerBusyError(f"subscription {name} is in use with another Key_Shared mode")


def ranges_for(meta: pb.KeySharedMeta, taken: Iterable[HashRange]) -> tuple[HashRange, ...]:
    """The hash ranges of a new Key_Shared consumer, beside those that other consumers have taken."""
    if meta.entryBucketDispatch:
        return tuple(HashRange(start, end) for start, end in _pairs(meta))
    if meta.keySharedMode != pb.STICKY:
        return ()
    return sticky_ranges(_pairs(meta), taken)


def _pairs(meta: pb.KeySharedMeta) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in meta.hashRanges]
