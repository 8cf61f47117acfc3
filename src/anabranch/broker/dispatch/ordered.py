"""Exclusive and Failover subscriptions: one consumer reads at a time."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.broker.dispatch.receivers import Receiver


def active_consumer(receivers: Sequence[Receiver], partition: int) -> Receiver | None:
    """The consumer that reads: of the lowest priority level, by name; partitions spread over the names."""
    if not receivers:
        return None
    level = min(receiver.priority for receiver in receivers)
    candidates = sorted((r for r in receivers if r.priority == level), key=lambda r: (r.name, r.id))
    return candidates[max(partition, 0) % len(candidates)]
