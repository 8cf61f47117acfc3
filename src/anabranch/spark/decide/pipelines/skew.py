"""Reports how unevenly keys load segments and buckets, and which cuts would even it out. Pure.

Weights come from a pass over stored messages. `model.weights` makes the cuts, as for auto-scaling; this
module only decides which cuts are worth a change.

Example: segments 1 (slots 0000-7fff) and 2 (8000-ffff) should take half of the weight each. Slots 1000 and
2000 have a weight of 45 each, and slot 9000 has 10. Segment 1 takes 90 %, more than 1.25 times its half, so a
split at slot 1001 is suggested, after which each part takes 50 % of it. If slot 1000 had all 90, no split
would help: its heaviest part would still take more than 90 % of the segment, and the report calls it
hopeless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from anabranch.model.layout import Layout, Segment
from anabranch.model.ranges import FULL, HASH_SLOTS, HashRange
from anabranch.model.scale_plans import HOPELESS_SHARE
from anabranch.model.weights import Cells, balanced_bucket_splits, balanced_points, largest_share

WeightUnit = Literal["messages", "bytes"]

BUCKET_CELLS = 1024
"""Cells of equal width in which the bucket hashes of a segment are counted."""

RING_CELLS = 64
"""Cells of equal width in which the ring is shown over time."""

WORTH_SPLITTING = 1.25
"""A segment is worth a split if it takes more than this many times its even share."""

WORTH_REBUCKETING = 0.9
"""New bucket boundaries are worth a change if the heaviest bucket shrinks to this part of its weight."""

_NICE_INTERVALS_S = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
_INTERVALS_MAX = 48


def nice_interval_s(first_ms: int, last_ms: int) -> int:
    """Return the shortest round interval that divides the time into at most 48 parts."""
    length_s = max(0, last_ms - first_ms) / 1000
    fitting = (step for step in _NICE_INTERVALS_S if length_s / step <= _INTERVALS_MAX)
    return next(fitting, _NICE_INTERVALS_S[-1])


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """One of the heaviest keys, and its weight in each interval."""

    key: bytes
    weight: int
    slot: int
    segment: int
    """The active segment that takes the key now."""
    over_time: Mapping[int, int]
    """By start of the interval, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class SegmentWeight:
    """An active segment, the weight of its keys, and the changes that are worth making."""

    segment: Segment
    weight: int
    share: float
    """Of the whole topic."""
    points: tuple[int, ...] = ()
    """First slot of each part but the first; empty if no split is suggested."""
    largest_part: float = 1.0
    """Share of the segment's weight in its heaviest part after that split."""
    boundaries: tuple[int, ...] = ()
    """First slot of each bucket but the first; empty if the present ones are good enough."""
    hopeless: bool = False
    """The segment is too heavy, but one slot takes nearly all of it."""


@dataclass(frozen=True, slots=True)
class SkewReport:
    """The weights of one topic.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        report = pipelines.skew(spark, orders)
        print(report.total, report.commands())
    """

    topic: str
    unit: WeightUnit
    total: int
    """Weight of all messages with a key."""
    without_key: int
    interval_s: int
    segments: tuple[SegmentWeight, ...]
    heavy_keys: tuple[HeavyKey, ...]
    heat: Mapping[tuple[int, int], int]
    """Weight by cell of the ring and start of the interval; see RING_CELLS."""

    @property
    def times(self) -> list[int]:
        """Starts of all intervals, without gaps."""
        starts = [start for _, start in self.heat]
        return list(range(min(starts), max(starts) + 1, self.interval_s)) if starts else []

    def commands(self) -> list[str]:
        """Return the commands that carry out the suggestions; a split makes new boundaries pointless."""
        found = []
        for one in self.segments:
            if one.points:
                points = ",".join(f"0x{point:04x}" for point in one.points)
                found.append(f"anabranch topic split {self.topic} {one.segment.id} --points {points}")
            elif one.boundaries:
                slots = ",".join(f"0x{slot:04x}" for slot in one.boundaries)
                found.append(f"anabranch topic rebucket {self.topic} {one.segment.id} --boundaries {slots}")
        return found


def weigh_segments(
    layout: Layout, slots: Mapping[int, int], segments_wanted: int | None = None
) -> list[SegmentWeight]:
    """Return the active segments by range, with split points for those that take too much.

    `slots` is the weight of each slot of the ring. Each segment should take an even share: one of
    `segments_wanted` parts, or of as many parts as there are segments now.
    """
    total = sum(slots.values())
    goal = 1 / max(segments_wanted or 0, len(layout.active), 1)
    return [_weigh(segment, slots, total, goal) for segment in layout.active]


def _weigh(segment: Segment, slots: Mapping[int, int], total: int, goal: float) -> SegmentWeight:
    cells = [
        (HashRange(slot, slot), float(weight)) for slot, weight in slots.items() if slot in segment.range
    ]
    weight = int(sum(weight for _, weight in cells))
    share = weight / total if total else 0.0
    plain = SegmentWeight(segment, weight, share)
    if share <= WORTH_SPLITTING * goal or segment.is_classic:
        return plain
    if segment.range.width == 1:
        return SegmentWeight(segment, weight, share, hopeless=True)
    parts = min(segment.range.width, max(2, round(share / goal)))
    points = balanced_points(segment.range, cells, parts)
    largest = largest_share(segment.range, cells, points)
    if largest > HOPELESS_SHARE:
        return SegmentWeight(segment, weight, share, hopeless=True)
    return SegmentWeight(segment, weight, share, points, largest)


def better_boundaries(segment: Segment, cells: Mapping[int, int]) -> tuple[int, ...]:
    """Return bucket boundaries that share the weight more evenly; empty if the present ones are good enough.

    `cells` is the weight by cell of the bucket hash; see BUCKET_CELLS.
    """
    if segment.bucket_count == 1 or not any(cells.values()):
        return ()
    width = HASH_SLOTS // BUCKET_CELLS
    weights: Cells = [
        (HashRange(cell * width, cell * width + width - 1), float(weight)) for cell, weight in cells.items()
    ]
    better = balanced_bucket_splits(weights, segment.bucket_count)
    now = _heaviest_bucket(weights, segment.bucket_splits)
    return better if _heaviest_bucket(weights, better) <= WORTH_REBUCKETING * now else ()


def _heaviest_bucket(weights: Cells, splits: Sequence[int]) -> float:
    return largest_share(FULL, weights, splits)


def segment_of_slot(layout: Layout, slot: int) -> int:
    """Return the id of the active segment that takes a slot; a classic partition takes any slot."""
    return next((one.id for one in layout.active if slot in one.range), layout.active[0].id)
