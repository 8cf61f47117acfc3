"""The reading strategy of each subscription type, and the name of the type."""

from __future__ import annotations

from anabranch.broker.dispatch.selectors import bucket_boundaries
from anabranch.broker.serving.reading.keyed_reading import KeyedReading, range_pairs
from anabranch.broker.serving.reading.ordered_reading import OrderedReading
from anabranch.broker.serving.reading.reading import Reading, ReadPath
from anabranch.broker.serving.reading.shared_reading import SharedReading
from anabranch.protocol.pb import pulsar_pb2 as pb

Kind = int
"""A CommandSubscribe.SubType."""


def kind_name(kind: Kind) -> str:
    """How Pulsar spells a subscription type."""
    return pb.CommandSubscribe.SubType.Name(pb.CommandSubscribe.SubType.ValueType(kind))


def make_reading(path: ReadPath, kind: Kind, meta: pb.KeySharedMeta, before: Reading) -> Reading:
    """The strategy for the first consumer of a subscription, which decides how the others read too.

    A keyed strategy goes on where it was `before`, so that no entry of a lane is read again.
    """
    if kind == pb.CommandSubscribe.Key_Shared and isinstance(before, KeyedReading) and before.is_like(meta):
        return before
    if kind == pb.CommandSubscribe.Shared:
        return SharedReading(path)
    if kind != pb.CommandSubscribe.Key_Shared:
        return OrderedReading(path, failover=kind == pb.CommandSubscribe.Failover)
    if meta.entryBucketDispatch:
        return KeyedReading(path, boundaries=bucket_boundaries(range_pairs(meta)))
    return KeyedReading(path, sticky=meta.keySharedMode == pb.STICKY)
