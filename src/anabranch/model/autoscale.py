"""Load, policy, now -> Split | Merge | Rebucket | Keep, and why, and why not the rest.

`decide` is a pure function, so the broker and the simulator run the same one. What keeps it quiet under a
steady load: a segment is split only when it is over a threshold, into parts that are well below it; a merge
is made only when its result, by the sum of its parts, stays at half of every split threshold and leaves a
segment for each consumer. So no merge ever asks for a split, and each kind of step runs out by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, inf
from typing import Literal

from anabranch.model.hashing import check_bucket_splits, equal_bucket_splits
from anabranch.model.layout import Layout, Segment
from anabranch.model.observed import (
    METRICS,
    SURPLUS_FACTOR,
    LoadHistory,
    Observed,
    SegmentRates,
    advance_history,
    count_merge,
    is_cold,
    spare_buckets,
    wanted_buckets,
)
from anabranch.model.policy import AutoScalePolicy, json_name
from anabranch.model.ranges import FULL, HashRange
from anabranch.model.weights import balanced_points, largest_share

__all__ = [
    "Action",
    "Decision",
    "Keep",
    "LoadHistory",
    "Merge",
    "Observed",
    "Rebucket",
    "SegmentRates",
    "Split",
    "advance_history",
    "decide",
    "record_action",
]

SPLIT_FILL = 0.75
"""Parts of a split are made so small that each is filled to this much of the split threshold at most."""
MERGE_FILL = 0.5
"""A merge may fill its result to this much of the split threshold at most."""
HOPELESS_SHARE = 0.9
"""A split whose heaviest part would keep more than this share of the load is not worth making."""
SHRINK_WINDOWS = 10
"""Buckets are taken away after this many merge windows with far too many of them."""


@dataclass(frozen=True, slots=True)
class Split:
    """Cut a segment; points are the first slots of the children after the first."""

    segment: int
    points: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Join a run of neighbours, named by range."""

    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rebucket:
    """Give a segment other bucket boundaries."""

    segment: int
    splits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the layout as it is."""


Action = Split | Merge | Rebucket | Keep

_Allowed = Callable[[Segment], bool]
_Weight = Callable[[Segment], float]


Cap = Literal["max_segments", "max_dag_depth"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and why."""

    action: Action
    reason: str
    against: tuple[str, ...] = ()
    """One sentence for each thing that was considered and not done."""
    look_again_s: float | None = None
    """In how many seconds what is put off now may be done; None when only new facts can change it."""
    then: tuple[Action, ...] = ()
    """More steps of the same decision, for other segments, to be made right after `action` without asking
    again; left undone they are decided anew after the cooldown."""
    capped: frozenset[Cap] = frozenset()
    """The limits of the policy that kept it from doing what the load asks for."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """One kind of step: what it would do, or why it does nothing."""

    actions: tuple[Action, ...] = ()
    reason: str = ""
    against: tuple[str, ...] = ()
    wait_s: float | None = None
    capped: frozenset[Cap] = frozenset()


def decide(observed: Observed, policy: AutoScalePolicy) -> Decision:
    """Return the one step to take now; each makes a layout that the next look must see."""
    if not policy.enabled:
        return Decision(Keep(), "auto-scaling is switched off for this topic")
    against: list[str] = []
    waits: list[float] = []
    capped: frozenset[Cap] = frozenset()
    kinds = (
        ("split", _split, policy.split_cooldown_seconds),
        ("rebucket", _more_buckets, policy.rebucket_cooldown_seconds),
        ("merge", _merge, policy.merge_cooldown_seconds),
        ("rebucket down", _fewer_buckets, policy.rebucket_cooldown_seconds),
    )
    for place, (_, judge, cooldown_s) in enumerate(kinds):
        verdict = judge(observed, policy)
        against += verdict.against
        capped |= verdict.capped
        if verdict.actions:
            against += [f"{later}: comes after the step taken now" for later, _, _ in kinds[place + 1 :]]
            first, *rest = verdict.actions
            return Decision(first, verdict.reason, tuple(against), cooldown_s, tuple(rest), capped)
        if verdict.wait_s is not None:
            waits.append(verdict.wait_s)
        if judge is _split and verdict.wait_s is not None:
            # What a split that is only put off will mend needs no other remedy meanwhile.
            against += [f"{later}: comes after the split" for later, _, _ in kinds[place + 1 :]]
            break
    return Decision(Keep(), "nothing to do now", tuple(against), min(waits, default=None), capped=capped)


def record_action(history: LoadHistory, layout: Layout, action: Action, now_s: float) -> LoadHistory:
    """The history after an action was committed on this layout; a failed try must not be recorded."""
    if isinstance(action, Split):
        return replace(history, last_split_s=now_s)
    if isinstance(action, Merge):
        merged = HashRange.join(sorted(layout.segment(id_).range for id_ in action.segments))
        return count_merge(replace(history, last_merge_s=now_s), merged)
    if isinstance(action, Rebucket):
        return replace(history, last_rebucket_s=now_s)
    return history


def _split(observed: Observed, policy: AutoScalePolicy) -> _Verdict:
    wish = _Wish(observed, policy)
    wish.ask_for_load()
    wish.ask_for_count()
    actions = wish.actions()
    if not actions:
        return _Verdict(against=tuple(wish.against), capped=wish.capped)
    wait_s = _left(observed.history.last_split_s, policy.split_cooldown_seconds, observed.now_s)
    reason = "; ".join(wish.reasons)
    if wait_s > 0:
        put_off = f"split: {reason}; the split cooldown runs for {wait_s:.0f} s more"
        return _Verdict(against=(*wish.against, put_off), wait_s=wait_s, capped=wish.capped)
    return _Verdict(actions, reason, tuple(wish.against), capped=wish.capped)


class _Wish:
    """Into how many parts each active segment should be cut, found step by step within max_segments."""

    def __init__(self, observed: Observed, policy: AutoScalePolicy) -> None:
        self.observed = observed
        self.policy = policy
        self.active = observed.layout.active
        self.rates = {segment.id: observed.known(segment, policy) for segment in self.active}
        self.fill = {id_: _fill(rates, policy) for id_, rates in self.rates.items()}
        self.parts = {segment.id: 1 for segment in self.active}
        self.reasons: list[str] = []
        self.against: list[str] = []
        self.capped: frozenset[Cap] = frozenset()

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def ask_for_load(self) -> None:
        """Cut what is over a split threshold, the fullest first."""
        needed: dict[int, int] = {}
        texts: dict[int, str] = {}
        for segment in self.active:
            fill, metric = self.fill[segment.id]
            if fill <= 1:
                continue
            over = f"segment {segment.id} is at {fill:.0%} of {json_name(f'split_{metric}_threshold')}"
            count = min(segment.range.width, ceil(fill / SPLIT_FILL), self.policy.max_segments + 1)
            refused = self._hopeless(segment, count)
            if refused:
                self.against.append(f"split: {over}, but {refused}")
            else:
                needed[segment.id] = count
                texts[segment.id] = over
        self._grow(
            lambda segment: self.parts[segment.id] < needed.get(segment.id, 1),
            lambda segment: self.fill[segment.id][0],
            self.policy.max_segments,
        )
        limit = self.policy.max_segments
        for id_, over in texts.items():
            if self.parts[id_] > 1:
                self.reasons.append(f"{over}: {self.parts[id_]} parts")
            else:
                self.against.append(f"split: {over}, but maxSegments ({limit}) leaves no room")
                self.capped = frozenset(("max_segments",))
        unknown = sum(rates is None for rates in self.rates.values())
        if unknown:
            self.against.append(f"split: the load of {unknown} segments is unknown")
        if not needed and not self.against:
            fill, lowest = max((self.fill[segment.id][0], -segment.id) for segment in self.active)
            self.against.append(f"split: segment {-lowest} is the fullest, at {fill:.0%} of a threshold")

    def ask_for_count(self) -> None:
        """Reach min_segments, and a segment for each consumer where there is enough traffic for one."""
        low, high = self.policy.min_segments, self.policy.max_segments
        if self.total < low:
            self.reasons.append(f"{self.total} segments are fewer than minSegments ({low})")
            self._grow(lambda segment: True, lambda segment: self.fill[segment.id][0], low)
        consumers, before = self.observed.consumers, self.total
        if consumers <= before:
            self.against.append(f"split: {before} segments are enough for {consumers} ordered consumers")
            return
        floor = self.policy.split_vs_rebucket_min_msg_rate_in_threshold

        def worth_it(segment: Segment) -> bool:
            rate = self._rate_in(segment)
            return rate >= floor and (self.parts[segment.id] + 1) * floor <= 2 * rate

        self._grow(worth_it, self._rate_in, min(high, consumers))
        if self.total > before:
            self.reasons.append(f"{consumers} ordered consumers have {before} segments")
        elif before >= high:
            self.against.append(f"split: {consumers} ordered consumers, but maxSegments is {high}")
            self.capped = frozenset(("max_segments",))
        else:
            self.against.append(
                f"split: {consumers} ordered consumers have {before} segments, but none takes the "
                f"{floor:g} messages/s that are worth a split for them"
            )

    def actions(self) -> tuple[Action, ...]:
        cut = sorted(
            (segment for segment in self.active if self.parts[segment.id] > 1),
            key=lambda segment: (-self.fill[segment.id][0], segment.id),
        )
        return tuple(Split(segment.id, self._points(segment, self.parts[segment.id])) for segment in cut)

    def _points(self, segment: Segment, count: int) -> tuple[int, ...]:
        rates = self.rates[segment.id]
        return balanced_points(segment.range, rates.weights if rates else (), count)

    def _hopeless(self, segment: Segment, count: int) -> str | None:
        if segment.range.width == 1:
            return "it covers a single hash slot and cannot be cut"
        rates = self.rates[segment.id]
        if rates is not None and rates.weights:
            share = largest_share(segment.range, rates.weights, self._points(segment, count))
            if share > HOPELESS_SHARE:
                return f"one hot spot takes {share:.0%} of its traffic and no cut would help"
        return None

    def _rate_in(self, segment: Segment) -> float:
        rates = self.rates[segment.id]
        return rates.msg_rate_in if rates else 0.0

    def _grow(self, allowed: _Allowed, weight: _Weight, limit: int) -> None:
        """Add parts one by one where they are largest by weight, or by width; ties go to the lowest id."""
        while self.total < limit:
            open_ = [
                segment
                for segment in self.active
                if self.parts[segment.id] < segment.range.width and allowed(segment)
            ]
            if not open_:
                return
            largest = min(
                open_,
                key=lambda segment: (
                    -weight(segment) / self.parts[segment.id],
                    -segment.range.width / self.parts[segment.id],
                    segment.id,
                ),
            )
            self.parts[largest.id] += 1


def _more_buckets(observed: Observed, policy: AutoScalePolicy) -> _Verdict:
    active, consumers = observed.layout.active, observed.stream_consumers
    buckets = sum(segment.bucket_count for segment in active)
    if consumers <= buckets:
        return _Verdict(against=(f"rebucket: {buckets} buckets are enough for {consumers} stream consumers",))
    target = wanted_buckets(observed, policy)
    small = [segment for segment in active if segment.bucket_count < target]
    reason = f"{consumers} stream consumers have {buckets} buckets in {len(active)} segments"
    if not small:
        return _Verdict(against=(f"rebucket: {reason}, but entryBucketMaxPerSegment is {target}",))
    wait_s = _left(observed.history.last_rebucket_s, policy.rebucket_cooldown_seconds, observed.now_s)
    if wait_s > 0:
        put_off = f"rebucket: {reason}; the rebucket cooldown runs for {wait_s:.0f} s more"
        return _Verdict(against=(put_off,), wait_s=wait_s)
    return _Verdict(tuple(_rebucket(segment, target, observed, policy) for segment in small), reason)


def _fewer_buckets(observed: Observed, policy: AutoScalePolicy) -> _Verdict:
    target = spare_buckets(observed, policy)
    large = [segment for segment in observed.layout.active if segment.bucket_count >= SURPLUS_FACTOR * target]
    since = [observed.history.surplus_since.get(segment.id, observed.now_s) for segment in large]
    if not large:
        return _Verdict(against=("rebucket down: no segment has far more buckets than consumers can use",))
    waits = (
        _left(max(since), SHRINK_WINDOWS * policy.merge_window_seconds, observed.now_s),
        _left(observed.history.last_rebucket_s, policy.rebucket_cooldown_seconds, observed.now_s),
    )
    reason = f"{len(large)} segments have {SURPLUS_FACTOR} times the {target} buckets of use, or more"
    if max(waits) > 0:
        put_off = f"rebucket down: {reason}, but not for long enough; {max(waits):.0f} s to go"
        return _Verdict(against=(put_off,), wait_s=max(waits))
    return _Verdict(tuple(_rebucket(segment, target, observed, policy) for segment in large), reason)


def _rebucket(segment: Segment, count: int, observed: Observed, policy: AutoScalePolicy) -> Rebucket:
    rates = observed.known(segment, policy)
    if rates is not None and rates.bucket_weights:
        splits = balanced_points(FULL, rates.bucket_weights, count)
        if check_bucket_splits(splits) is None and splits != segment.bucket_splits:
            return Rebucket(segment.id, splits)
    return Rebucket(segment.id, equal_bucket_splits(count))


def _merge(observed: Observed, policy: AutoScalePolicy) -> _Verdict:
    active, history, now_s = observed.layout.active, observed.history, observed.now_s
    least = max(policy.min_segments, observed.consumers)
    if len(active) <= least:
        need = f"minSegments is {policy.min_segments}, ordered consumers are {observed.consumers}"
        return _Verdict(against=(f"merge: all {len(active)} segments are needed: {need}",))
    for name, last_s, cooldown_s in (
        # A merge now could undo growth that is still under way.
        ("split", history.last_split_s, policy.split_cooldown_seconds),
        ("merge", history.last_merge_s, policy.merge_cooldown_seconds),
    ):
        wait_s = _left(last_s, cooldown_s, now_s)
        if wait_s > 0:
            return _Verdict(
                against=(f"merge: the {name} cooldown runs for {wait_s:.0f} s more",), wait_s=wait_s
            )
    cold = {segment.id: _cold_wait(segment, observed, policy) for segment in active}
    run = _best_run(observed, policy, cold, len(active) - least + 1, policy.max_dag_depth)
    if run:
        names = ", ".join(str(segment.id) for segment in run)
        reason = f"segments {names} are cold, and one segment takes their load with room to spare"
        return _Verdict((Merge(tuple(segment.id for segment in run)),), reason)
    return _why_no_merge(observed, policy, cold)


def _why_no_merge(observed: Observed, policy: AutoScalePolicy, cold: dict[int, float | None]) -> _Verdict:
    pairs = [(cold[left.id], cold[right.id]) for left, right in pairwise(observed.layout.active)]
    waits = [max(left, right) for left, right in pairs if left is not None and right is not None]
    later = [wait_s for wait_s in waits if wait_s > 0]
    if later:
        text = f"merge: cold neighbours must stay so for {min(later):.0f} s more"
        return _Verdict(against=(text,), wait_s=min(later))
    if waits:
        least = max(policy.min_segments, observed.consumers)
        if _best_run(observed, policy, cold, len(observed.layout.active) - least + 1, inf):
            text = f"merge: cold neighbours were merged too often, maxDagDepth is {policy.max_dag_depth}"
            return _Verdict(against=(text,), capped=frozenset(("max_dag_depth",)))
        return _Verdict(against=("merge: cold neighbours together would be too full",))
    unknown = sum(observed.known(segment, policy) is None for segment in observed.layout.active)
    text = "merge: no two neighbours are cold"
    return _Verdict(against=(f"{text}; the load of {unknown} segments is unknown" if unknown else text,))


def _cold_wait(segment: Segment, observed: Observed, policy: AutoScalePolicy) -> float | None:
    """How long a cold segment must stay so before it may be merged; None when it is not known to be cold."""
    rates = observed.known(segment, policy)
    since = observed.history.cold_since.get(segment.id)
    if rates is None or since is None or not is_cold(rates, policy):
        return None
    return _left(since, policy.merge_window_seconds, observed.now_s)


def _best_run(
    observed: Observed,
    policy: AutoScalePolicy,
    cold: dict[int, float | None],
    length_max: int,
    merges_max: float,
) -> tuple[Segment, ...]:
    """The longest run of neighbours that may become one segment; the emptiest of equals, then the lowest."""
    active = observed.layout.active
    sums = _running_sums(observed, policy)
    best = (0, 0.0, 0)
    found: tuple[Segment, ...] = ()
    first = 0
    for last, segment in enumerate(active):
        if cold[segment.id] != 0 or observed.history.merges_in(segment.range) >= merges_max:
            first = last + 1
            continue
        first = max(first, last + 1 - length_max)
        while (fill := _fill_between(sums[first], sums[last + 1], policy)) > MERGE_FILL:
            first += 1
        score = (first - last, fill, last)
        if first < last and score < best:
            best, found = score, active[first : last + 1]
    return found


def _running_sums(observed: Observed, policy: AutoScalePolicy) -> list[SegmentRates]:
    """Rates summed over the active segments from the left, the empty sum first; unknown ones add nothing."""
    sums = [SegmentRates()]
    for segment in observed.layout.active:
        rates = observed.known(segment, policy) or SegmentRates()
        sums.append(SegmentRates(*(getattr(sums[-1], name) + getattr(rates, name) for name in METRICS)))
    return sums


def _fill_between(before: SegmentRates, after: SegmentRates, policy: AutoScalePolicy) -> float:
    joint = SegmentRates(*(getattr(after, name) - getattr(before, name) for name in METRICS))
    return _fill(joint, policy)[0]


def _fill(rates: SegmentRates | None, policy: AutoScalePolicy) -> tuple[float, str]:
    """How full a segment is, by the split threshold it is nearest to; unlike units are never added up."""
    if rates is None:
        return 0.0, METRICS[0]
    fills = [(getattr(rates, name) / getattr(policy, f"split_{name}_threshold"), name) for name in METRICS]
    return max(fills, key=lambda item: item[0])


def _left(since_s: float | None, length_s: float, now_s: float) -> float:
    """Seconds until a time that began at `since_s` is over; 0 when it is, or never began."""
    return 0.0 if since_s is None else max(0.0, since_s + length_s - now_s)
