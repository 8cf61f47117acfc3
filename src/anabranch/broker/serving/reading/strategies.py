"""Chooses the reading strategy of a subscription; the only place that knows all strategies of stored logs.

A subscription is given a `ChooseReading` when it is made, so another choice can be supplied from outside.
How far a strategy by key reads past stuck slots is a choice of its own: `KeyedStrategy` in `broker/dispatch`.
"""

from __future__ import annotations

from typing import Protocol

from anabranch.broker.dispatch.selectors import bucket_boundaries
from anabranch.broker.serving.delivery.read_path import ReadPath
from anabranch.broker.serving.reading.keyed_reading import KeyedReading
from anabranch.broker.serving.reading.ordered_reading import OrderedReading
from anabranch.broker.serving.reading.reading import Reading
from anabranch.broker.serving.reading.shared_reading import SharedReading
from anabranch.broker.serving.reading.sharing import range_pairs
from anabranch.errors import ConsumerAssignError, ConsumerBusyError
from anabranch.protocol.pb import pulsar_pb2 as pb

Kind = int
"""A CommandSubscribe.SubType."""


class ChooseReading(Protocol):
    """Chooses the strategy for the first consumer of a subscription; the other consumers join it."""

    def __call__(self, path: ReadPath, kind: Kind, meta: pb.KeySharedMeta, before: Reading | None) -> Reading:
        """`before` is the strategy of the former consumers, if there were any; it may go on."""


def kind_name(kind: Kind) -> str:
    """How Pulsar spells a subscription type."""
    return pb.CommandSubscribe.SubType.Name(pb.CommandSubscribe.SubType.ValueType(kind))


def make_reading(path: ReadPath, kind: Kind, meta: pb.KeySharedMeta, before: Reading | None) -> Reading:
    """Choose by the subscription type, as Pulsar does.

    A keyed strategy goes on where it was `before`, so that no entry of a lane is read again.
    """
    if kind == pb.CommandSubscribe.Shared:
        return SharedReading(path)
    if kind != pb.CommandSubscribe.Key_Shared:
        return OrderedReading(path, failover=kind == pb.CommandSubscribe.Failover)
    if before is not None and before.lanes is not None and _is_like(before, meta):
        return before
    if meta.entryBucketDispatch:
        return KeyedReading(path, boundaries=bucket_boundaries(range_pairs(meta)))
    return KeyedReading(path, sticky=meta.keySharedMode == pb.STICKY)


def _is_like(before: Reading, meta: pb.KeySharedMeta) -> bool:
    """Return whether a new first consumer shares by the same rules, so that the lanes stay as they are."""
    try:
        before.sharing.check_fits("", meta)
    except (ConsumerBusyError, ConsumerAssignError):
        return False
    return True
