"""The input of auto-scaling: rates, consumers, and the history of the topic.

The history is separate from the layout, so that pruning keeps cooldowns, cold times and merge counts; a
controller stores it with the topic. Times are seconds of one clock that survives a restart.

Example: six stream consumers on two segments want four buckets per segment (6 / 2 = 3, rounded up to a power
of two). A segment that has far too many keeps twice as many, eight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from anabranch.errors import CorruptDataError, LayoutError
from anabranch.model.layout import Layout, Segment
from anabranch.model.ranges import HashRange
from anabranch.model.scaling.policy import AutoScalePolicy
from anabranch.model.scaling.traffic_sketch import HotHash

METRICS = ("msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")

BUCKETS_MIN = 4
"""A segment with fewer buckets than this never has too many."""
SURPLUS_FACTOR = 4
"""A segment has too many buckets when it has this many times the buckets that its consumers can use."""


@dataclass(frozen=True, slots=True)
class SegmentRates:
    """Rates of one segment, per second, as its owner measured them."""

    msg_rate_in: float = 0.0
    bytes_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_rate_out: float = 0.0
    measured_s: float | None = None
    """Time of the measurement; None means now."""
    weights: tuple[tuple[HashRange, float], ...] = ()
    """Incoming traffic by segment hash, as cells with a weight; empty when not measured."""
    bucket_weights: tuple[tuple[HashRange, float], ...] = ()
    """Incoming traffic by bucket hash, as cells with a weight."""
    hottest: tuple[HotHash, ...] = ()
    """The key hashes with the largest shares of the incoming traffic, the largest first."""


@dataclass(frozen=True, slots=True)
class LoadHistory:
    """Earlier steps of auto-scaling; a time is None if the step was never taken."""

    last_split_s: float | None = None
    last_merge_s: float | None = None
    last_rebucket_s: float | None = None
    cold_since: Mapping[int, float] = field(default_factory=dict)
    """Time since which each active segment is known to be below every merge threshold."""
    surplus_since: Mapping[int, float] = field(default_factory=dict)
    """Time since which each active segment has far more buckets than its consumers can use."""
    merges: tuple[tuple[HashRange, int], ...] = ()
    """Number of merges by auto-scaling per part of the ring; parts without a merge are left out."""

    def merges_in(self, part: HashRange) -> int:
        """Return the highest number of merges of any slot of the range."""
        return max((count for known, count in self.merges if known.overlaps(part)), default=0)

    def to_json(self) -> dict[str, object]:
        """Return the history as plain JSON values."""
        return {
            "lastSplitS": self.last_split_s,
            "lastMergeS": self.last_merge_s,
            "lastRebucketS": self.last_rebucket_s,
            "coldSince": {str(id_): since for id_, since in sorted(self.cold_since.items())},
            "surplusSince": {str(id_): since for id_, since in sorted(self.surplus_since.items())},
            "merges": {str(part): count for part, count in self.merges},
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> LoadHistory:
        """Undo `to_json`; raises CorruptDataError."""
        try:
            return LoadHistory(
                _time(data.get("lastSplitS")),
                _time(data.get("lastMergeS")),
                _time(data.get("lastRebucketS")),
                {int(id_): float(since) for id_, since in _items(data.get("coldSince"))},
                {int(id_): float(since) for id_, since in _items(data.get("surplusSince"))},
                tuple((HashRange.parse(part), int(count)) for part, count in _items(data.get("merges"))),
            )
        except (LayoutError, TypeError, ValueError) as cause:
            raise CorruptDataError(f"{data!r} is not an auto-scale history") from cause


NO_HISTORY = LoadHistory()


@dataclass(frozen=True, slots=True)
class Observed:
    """All facts that a decision may depend on, besides the policy."""

    layout: Layout
    rates: Mapping[int, SegmentRates] = field(default_factory=dict)
    """By segment id; the load of a missing segment is unknown, not zero."""
    stream_consumers: int = 0
    """The highest number of members of one group that shares segments by buckets, including members in their
    grace period: a stream subscription, or a checkpoint group that commits."""
    history: LoadHistory = NO_HISTORY
    now_s: float = 0.0
    checkpoint_consumers: int = 0
    """The highest number of members of a group that cannot share a segment: a checkpoint group that does not
    commit, or a group with a client that does not know buckets."""

    @property
    def consumers(self) -> int:
        """The highest number of consumers of one group, each of which can use a whole segment."""
        return max(self.stream_consumers, self.checkpoint_consumers)

    def known(self, segment: Segment, policy: AutoScalePolicy) -> SegmentRates | None:
        """Return the rates of a segment if they are valid and recent, else None."""
        rates = self.rates.get(segment.id)
        if rates is None or not all(0 <= getattr(rates, name) < inf for name in METRICS):
            return None
        # A time in the future is as useless as an old one: the clock was set back in the meantime.
        if rates.measured_s is not None and abs(self.now_s - rates.measured_s) > policy.load_stale_seconds:
            return None
        return rates


def is_cold(rates: SegmentRates, policy: AutoScalePolicy) -> bool:
    """Return whether every rate is below its merge threshold."""
    return all(getattr(rates, name) < getattr(policy, f"merge_{name}_threshold") for name in METRICS)


def wanted_buckets(observed: Observed, policy: AutoScalePolicy) -> int:
    """Return the buckets per segment with which all stream consumers share evenly, a power of two."""
    per_segment = -(-observed.stream_consumers // max(1, len(observed.layout.active)))
    return min(1 << max(0, per_segment - 1).bit_length(), policy.entry_bucket_max_per_segment)


def spare_buckets(observed: Observed, policy: AutoScalePolicy) -> int:
    """Return how many buckets a segment with too many keeps: twice the wanted number, for growth."""
    return min(max(BUCKETS_MIN, 2 * wanted_buckets(observed, policy)), policy.entry_bucket_max_per_segment)


def advance_history(history: LoadHistory, observed: Observed, policy: AutoScalePolicy) -> LoadHistory:
    """Update since when segments are known to be cold. Call it before each `decide` and store the result."""
    now_s = observed.now_s
    cold: dict[int, float] = {}
    surplus: dict[int, float] = {}
    too_many = SURPLUS_FACTOR * spare_buckets(observed, policy)
    for segment in observed.layout.active:
        rates = observed.known(segment, policy)
        if rates is not None and is_cold(rates, policy):
            cold[segment.id] = min(now_s, history.cold_since.get(segment.id, now_s))
        if segment.bucket_count >= too_many:
            surplus[segment.id] = min(now_s, history.surplus_since.get(segment.id, now_s))
    return replace(
        history,
        # A clock that was set back must not extend a cooldown.
        last_split_s=_not_after(history.last_split_s, now_s),
        last_merge_s=_not_after(history.last_merge_s, now_s),
        last_rebucket_s=_not_after(history.last_rebucket_s, now_s),
        cold_since=cold,
        surplus_since=surplus,
    )


def count_merge(history: LoadHistory, merged: HashRange) -> LoadHistory:
    """Count one more merge for every slot of the range, starting from the highest count of its slots."""
    parts: list[tuple[HashRange, int]] = [(merged, history.merges_in(merged) + 1)]
    for known, count in history.merges:
        if known.start < merged.start:
            parts.append((HashRange(known.start, min(known.end, merged.start - 1)), count))
        if known.end > merged.end:
            parts.append((HashRange(max(known.start, merged.end + 1), known.end), count))
    return replace(history, merges=tuple(sorted(parts)))


def _not_after(time_s: float | None, now_s: float) -> float | None:
    return None if time_s is None else min(time_s, now_s)


def _time(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value)
    raise TypeError(f"{value!r} is not a time")


def _items(value: object) -> list[tuple[str, float]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    raise TypeError(f"{value!r} is not a mapping")
