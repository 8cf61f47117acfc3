"""The lanes of one subscription in a few numbers, cheap enough for every scrape of the metrics."""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from anabranch.broker.serving.lanes.subscription_lanes import SubscriptionLanes

LANES_COUNTED: Final = 5000
"""Lanes that are looked at one by one, in a few milliseconds; with more, the others count as these do."""


class LaneTotals(NamedTuple):
    """The lanes of a subscription that have existed for a while; a young one is an ordinary wait."""

    lanes: int = 0
    entries: int = 0
    """Entries that wait in them."""
    size_bytes: int = 0
    """About the stored bytes of these entries."""


NO_LANES: Final = LaneTotals()


def lane_totals(of: SubscriptionLanes | None) -> LaneTotals:
    """Count the lanes of a subscription, if it has any."""
    if of is None:
        return NO_LANES
    dispatch, lanes = of.dispatch, of.dispatch.lanes
    stopped = sum(slot not in lanes for slot in dict.fromkeys((*dispatch.stops, *dispatch.overdue)))
    if not lanes.waiting:
        return LaneTotals(stopped)
    until_ms = of.shown_since_ms
    found = counted = entries = size_bytes = 0
    for slot in islice(lanes, LANES_COUNTED):
        counted += 1
        lane = lanes.get(slot)
        if lane is not None and lane.head >= 0 and lane.since_ms <= until_ms:
            found += 1
            entries += len(lane.entries)
            size_bytes += lane.size_bytes
    scale = len(lanes) / counted
    return LaneTotals(
        round(found * scale), min(round(entries * scale), lanes.waiting), round(size_bytes * scale)
    )
