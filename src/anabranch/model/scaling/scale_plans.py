"""Auto-scaling: which segments to split and where, and which cold neighbours to merge.

These are the split pass and the merge pass of PIP-483, with two differences: one decision may split several
segments, and a merge leaves a segment for each ordered consumer. Without the second, an idle topic with four
consumers would be split to four segments, merged to three and split again, for ever.

Example: a segment at 250% of a threshold needs ceil(2.5 / SPLIT_FILL) = 4 parts, each at about 63% of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from math import ceil, inf

from anabranch.errors import counted
from anabranch.model.layout import Segment
from anabranch.model.scaling.observed import METRICS, Observed, SegmentRates, is_cold
from anabranch.model.scaling.policy import AutoScalePolicy, json_name
from anabranch.model.scaling.scale_steps import Action, Cap, Merge, Split, Verdict, fill_of, time_left_s
from anabranch.model.scaling.weights import Cells, balanced_points, largest_share

SPLIT_FILL = 0.75
"""A split makes enough parts that each reaches at most this share of the split threshold."""
HOPELESS_SHARE = 0.9
"""A split is refused if its heaviest part would keep more than this share of the load."""
MERGE_FILL = 0.5
"""The result of a merge may reach at most this share of a split threshold."""

_Allowed = Callable[[Segment], bool]
_Weight = Callable[[Segment], float]


def plan_splits(observed: Observed, policy: AutoScalePolicy) -> Verdict:
    plan = _SplitPlan(observed, policy)
    plan.ask_for_load()
    plan.ask_for_count()
    actions = plan.actions()
    if not actions:
        return Verdict(against=tuple(plan.against), capped=plan.capped)
    wait_s = time_left_s(observed.history.last_split_s, policy.split_cooldown_seconds, observed.now_s)
    reason = "; ".join(plan.reasons)
    if wait_s > 0:
        put_off = f"split: {reason}; the split cooldown runs for {wait_s:.0f} s more"
        return Verdict(against=(*plan.against, put_off), wait_s=wait_s, capped=plan.capped)
    return Verdict(actions, reason, tuple(plan.against), capped=plan.capped)


class _SplitPlan:
    """The number of parts of each active segment, increased step by step within max_segments."""

    def __init__(self, observed: Observed, policy: AutoScalePolicy) -> None:
        self.observed = observed
        self.policy = policy
        self.active = observed.layout.active
        self.rates = {segment.id: observed.known(segment, policy) for segment in self.active}
        self.fill = {id_: fill_of(rates, policy) for id_, rates in self.rates.items()}
        self.parts = {segment.id: 1 for segment in self.active}
        self.reasons: list[str] = []
        self.against: list[str] = []
        self.capped: frozenset[Cap] = frozenset()

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def ask_for_load(self) -> None:
        """Split the segments above a split threshold, the fullest first."""
        needed: dict[int, int] = {}
        texts: dict[int, str] = {}
        for segment in self.active:
            fill, metric = self.fill[segment.id]
            if fill <= 1:
                continue
            over = f"segment {segment.id} is at {fill:.0%} of {json_name(f'split_{metric}_threshold')}"
            count = min(segment.range.width, ceil(fill / SPLIT_FILL), self.policy.max_segments + 1)
            count = self._useful_parts(segment, count)
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
                how = ", cut by traffic" if self._weights(id_) else ""
                self.reasons.append(f"{over}: {self.parts[id_]} parts{how}")
            else:
                self.against.append(f"split: {over}, but maxSegments ({limit}) leaves no room")
                self.capped = frozenset(("max_segments",))
        unknown = sum(rates is None for rates in self.rates.values())
        if unknown:
            self.against.append(f"split: the load of {counted(unknown, 'segment')} is unknown")
        if not needed and not self.against:
            fill, lowest = max((self.fill[segment.id][0], -segment.id) for segment in self.active)
            self.against.append(f"split: segment {-lowest} is the fullest, at {fill:.0%} of a threshold")

    def ask_for_count(self) -> None:
        """Reach min_segments, and one segment per consumer where the traffic is worth a split."""
        low, high = self.policy.min_segments, self.policy.max_segments
        if self.total < low:
            self.reasons.append(f"{counted(self.total, 'segment')}, fewer than minSegments ({low})")
            self._grow(lambda segment: True, lambda segment: self.fill[segment.id][0], low)
        consumers, before = self.observed.consumers, self.total
        if consumers <= before:
            enough = "is enough" if before == 1 else "are enough"
            needs = counted(consumers, "ordered consumer")
            self.against.append(f"split: {counted(before, 'segment')} {enough} for {needs}")
            return
        floor = self.policy.split_vs_rebucket_min_msg_rate_in_threshold

        def worth_it(segment: Segment) -> bool:
            rate = self._rate_in(segment)
            return rate >= floor and (self.parts[segment.id] + 1) * floor <= 2 * rate

        self._grow(worth_it, self._rate_in, min(high, consumers))
        if self.total > before:
            self.reasons.append(f"{counted(consumers, 'ordered consumer')} for {counted(before, 'segment')}")
        elif before >= high:
            self.against.append(f"split: {counted(consumers, 'ordered consumer')}, but maxSegments is {high}")
            self.capped = frozenset(("max_segments",))
        else:
            self.against.append(
                f"split: {counted(consumers, 'ordered consumer')} for {counted(before, 'segment')}, but no "
                f"segment takes the {floor:g} messages/s that are worth a split"
            )

    def actions(self) -> tuple[Action, ...]:
        cut = sorted(
            (segment for segment in self.active if self.parts[segment.id] > 1),
            key=lambda segment: (-self.fill[segment.id][0], segment.id),
        )
        return tuple(Split(segment.id, self._points(segment, self.parts[segment.id])) for segment in cut)

    def _weights(self, id_: int) -> Cells:
        rates = self.rates[id_]
        return () if rates is None else rates.weights

    def _points(self, segment: Segment, count: int) -> tuple[int, ...]:
        return balanced_points(segment.range, self._weights(segment.id), count)

    def _useful_parts(self, segment: Segment, count: int) -> int:
        """Return the fewest parts, up to `count`, that leave only single hot slots too full."""
        weights, goal = self._weights(segment.id), SPLIT_FILL / self.fill[segment.id][0]

        def is_enough(parts: int) -> bool:
            points = self._points(segment, parts)
            return largest_share(segment.range, weights, points, divisible=True) <= goal

        if not weights or largest_share(segment.range, weights, self._points(segment, count)) <= goal:
            return count
        return bisect_left(range(2, count), True, key=is_enough) + 2

    def _hopeless(self, segment: Segment, count: int) -> str | None:
        rates = self.rates[segment.id]
        hottest = "" if rates is None else _hottest_key(rates)
        if segment.range.width == 1:
            return f"it covers a single hash slot and cannot be cut{hottest}"
        if rates is not None and rates.weights:
            share = largest_share(segment.range, rates.weights, self._points(segment, count))
            if share > HOPELESS_SHARE:
                return f"one hot spot takes {share:.0%} of its traffic and no cut would help{hottest}"
        return None

    def _rate_in(self, segment: Segment) -> float:
        rates = self.rates[segment.id]
        return rates.msg_rate_in if rates else 0.0

    def _grow(self, allowed: _Allowed, weight: _Weight, limit: int) -> None:
        """Add parts one by one where parts are largest by weight, then by width; ties go to the lowest id."""
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


def _hottest_key(rates: SegmentRates) -> str:
    if not rates.hottest:
        return ""
    return f"; its hottest key is {rates.hottest[0].shown_key!r}, with {rates.hottest[0].share:.0%}"


def plan_merge(observed: Observed, policy: AutoScalePolicy) -> Verdict:
    active, history, now_s = observed.layout.active, observed.history, observed.now_s
    least = max(policy.min_segments, observed.consumers)
    if len(active) <= least:
        need = f"minSegments is {policy.min_segments}, with {counted(observed.consumers, 'ordered consumer')}"
        return Verdict(against=(f"merge: no segment can be spared of {len(active)}: {need}",))
    for name, last_s, cooldown_s in (
        # A merge within the split cooldown could undo growth that is still under way.
        ("split", history.last_split_s, policy.split_cooldown_seconds),
        ("merge", history.last_merge_s, policy.merge_cooldown_seconds),
    ):
        wait_s = time_left_s(last_s, cooldown_s, now_s)
        if wait_s > 0:
            return Verdict(
                against=(f"merge: the {name} cooldown runs for {wait_s:.0f} s more",), wait_s=wait_s
            )
    cold = {segment.id: _cold_wait(segment, observed, policy) for segment in active}
    run = _best_run(observed, policy, cold, len(active) - least + 1, policy.max_dag_depth)
    if run:
        names = ", ".join(str(segment.id) for segment in run)
        reason = f"segments {names} are cold, and one segment can take their load with room to spare"
        return Verdict((Merge(tuple(segment.id for segment in run)),), reason)
    return _why_no_merge(observed, policy, cold)


def _why_no_merge(observed: Observed, policy: AutoScalePolicy, cold: dict[int, float | None]) -> Verdict:
    pairs = [(cold[left.id], cold[right.id]) for left, right in pairwise(observed.layout.active)]
    waits = [max(left, right) for left, right in pairs if left is not None and right is not None]
    later = [wait_s for wait_s in waits if wait_s > 0]
    if later:
        text = f"merge: cold neighbours must stay cold for {min(later):.0f} s more"
        return Verdict(against=(text,), wait_s=min(later))
    if waits:
        least = max(policy.min_segments, observed.consumers)
        if _best_run(observed, policy, cold, len(observed.layout.active) - least + 1, inf):
            text = f"merge: cold neighbours were merged too often; maxDagDepth is {policy.max_dag_depth}"
            return Verdict(against=(text,), capped=frozenset(("max_dag_depth",)))
        return Verdict(against=("merge: cold neighbours together would be too full",))
    unknown = sum(observed.known(segment, policy) is None for segment in observed.layout.active)
    text = "merge: no two neighbours are cold"
    return Verdict(
        against=(f"{text}; the load of {counted(unknown, 'segment')} is unknown" if unknown else text,)
    )


def _cold_wait(segment: Segment, observed: Observed, policy: AutoScalePolicy) -> float | None:
    """Return the seconds that a cold segment must still stay cold before a merge.

    Return None if it is not known to be cold.
    """
    rates = observed.known(segment, policy)
    since = observed.history.cold_since.get(segment.id)
    if rates is None or since is None or not is_cold(rates, policy):
        return None
    return time_left_s(since, policy.merge_window_seconds, observed.now_s)


def _best_run(
    observed: Observed,
    policy: AutoScalePolicy,
    cold: dict[int, float | None],
    length_max: int,
    merges_max: float,
) -> tuple[Segment, ...]:
    """Return the longest run of neighbours that may become one segment.

    Among runs of equal length, the emptiest wins, then the lowest.
    """
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
    """Return the running sums of the rates of the active segments from the left, starting with zero.

    Unknown rates count as 0.
    """
    sums = [SegmentRates()]
    for segment in observed.layout.active:
        rates = observed.known(segment, policy) or SegmentRates()
        sums.append(SegmentRates(*(getattr(sums[-1], name) + getattr(rates, name) for name in METRICS)))
    return sums


def _fill_between(before: SegmentRates, after: SegmentRates, policy: AutoScalePolicy) -> float:
    joint = SegmentRates(*(getattr(after, name) - getattr(before, name) for name in METRICS))
    return fill_of(joint, policy)[0]
