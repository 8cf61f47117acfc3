"""The lanes of one subscription in a few numbers, cheap enough for every scrape of the metrics."""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from anabranch.broker.serving.reading.keyed_reading import KeyedReading
from anabranch.broker.serving.subscription.acknowledging import backlog_messages
from anabranch.broker.serving.subscription.subscription import Subscription

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


class Backlog(NamedTuple):
    """The messages of a subscription that are not acknowledged, by the place where they are."""

    messages: int
    held: int
    """Messages in lanes, about: their entries times the average number of messages of a pending entry."""

    @property
    def consumable(self) -> int:
        """Messages that wait for no stuck key."""
        return self.messages - self.held


def lane_totals(subscription: Subscription) -> LaneTotals:
    reading = subscription.reading
    if not isinstance(reading, KeyedReading):
        return NO_LANES
    dispatch, lanes = reading.dispatch, reading.dispatch.lanes
    stopped = sum(slot not in lanes for slot in dict.fromkeys((*dispatch.holds, *dispatch.overdue)))
    if not lanes.held:
        return LaneTotals(stopped)
    until_ms = reading.path.clock.wall_ms() - reading.path.keyed.after_ms
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
        round(found * scale), min(round(entries * scale), lanes.held), round(size_bytes * scale)
    )


def backlog_of(subscription: Subscription, totals: LaneTotals) -> Backlog:
    """The backlog in messages, apart by lanes."""
    messages, pending = backlog_messages(subscription.log, subscription.cursor), subscription.backlog
    held = round(messages * totals.entries / pending) if pending else 0
    return Backlog(messages, min(held, messages))
