"""Chooses the reading strategy for a type of subscription."""

from __future__ import annotations

from anabranch.broker.dispatch.selectors import bucket_boundaries
from anabranch.broker.serving.keyed_reading import KeyedReading, range_pairs
from anabranch.broker.serving.reading import OrderedReading, Reading, ReadPath
from anabranch.broker.serving.shared_reading import SharedReading
from anabranch.protocol.pb import pulsar_pb2 as pb


def make_reading(path: ReadPath, kind: int, meta: pb.KeySharedMeta) -> Reading:
    """A strategy for a CommandSubscribe.SubType."""
    if kind == pb.CommandSubscribe.Shared:
        return SharedReading(path)
    if kind != pb.CommandSubscribe.Key_Shared:
        return OrderedReading(path, failover=kind == pb.CommandSubscribe.Failover)
    if meta.entryBucketDispatch:
        return KeyedReading(path, boundaries=bucket_boundaries(range_pairs(meta)))
    return KeyedReading(path, sticky=meta.keySharedMode == pb.STICKY)
