"""Lanes as people see them: the slots that do not go on, why, and which consumer they wait for.

For example, entries 70 and 71 of slot 3 wait since 1,000 ms. Their owner A has no permits: the reason is
`busy`, and they wait for A. If B owns the slot now and A still has entry 69, it is `handover`, and they wait
for A. If an operator parked the slot at 2,000 ms, it is `parked`, and the lane is shown since 2,000 ms.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.lanes import LaneReason, LaneView


def waiting_slots(dispatch: KeyedDispatch) -> Iterator[tuple[int, int, int]]:
    """All slots that do not go on, as (slot, since_ms, entries)."""
    lanes, stops, overdue = dispatch.lanes, dispatch.stops, dispatch.overdue
    for slot in dict.fromkeys((*lanes, *stops, *overdue)):
        lane, stop = lanes.get(slot), stops.get(slot)
        since_ms = stop.since_ms if stop else lane.since_ms if lane else overdue[slot][1]
        yield slot, since_ms, lane.count if lane else 0


def lane_reason(dispatch: KeyedDispatch, slot: int) -> LaneReason:
    """Why the first entry of a slot does not go out."""
    stop = dispatch.stops.get(slot)
    if stop is not None:
        return stop.reason
    if slot in dispatch.overdue:
        return LaneReason.UNACKNOWLEDGED
    owner = dispatch.owner(slot)
    if owner is None:
        return LaneReason.CLOSED if slot in dispatch.closed else LaneReason.NO_CONSUMER
    return LaneReason.BUSY if dispatch.outstanding_at(slot) in (None, owner) else LaneReason.HANDOVER


def lane_view(dispatch: KeyedDispatch, slot: int) -> LaneView | None:
    """Return the lane of a slot; None for a slot that goes on."""
    lane, stop = dispatch.lanes.get(slot), dispatch.stops.get(slot)
    if lane is None and stop is None and slot not in dispatch.overdue:
        return None
    waits_for = dispatch.outstanding_at(slot) or dispatch.owner(slot)
    return LaneView(
        slot=slot,
        reason=lane_reason(dispatch, slot),
        since_ms=stop.since_ms if stop else lane.since_ms if lane else dispatch.overdue[slot][1],
        entries=lane.count if lane else 0,
        size_bytes=lane.size_bytes if lane else 0,
        first_ordinal=lane.head if lane else -1,
        waits_for=waits_for.name if waits_for else "",
        until_ms=stop.until_ms if stop else 0,
        note=stop.note if stop else "",
    )
