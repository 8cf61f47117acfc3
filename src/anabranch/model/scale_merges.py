"""Auto-scaling: which cold neighbours to merge."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from anabranch.model.layout import Segment
from anabranch.model.observed import METRICS, Observed, SegmentRates, is_cold
from anabranch.model.policy import AutoScalePolicy
from anabranch.model.scale_steps import Merge, Verdict, fill_of, time_left_s

MERGE_FILL = 0.5
"""The result of a merge may reach at most this share of a split threshold."""


def plan_merge(observed: Observed, policy: AutoScalePolicy) -> Verdict:
    active, history, now_s = observed.layout.active, observed.history, observed.now_s
    least = max(policy.min_segments, observed.consumers)
    if len(active) <= least:
        need = f"minSegments is {policy.min_segments}, ordered consumers are {observed.consumers}"
        return Verdict(against=(f"merge: all {len(active)} segments are needed: {need}",))
    for name, last_s, cooldown_s in (
        # A merge could undo growth that is still under way.
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
        reason = f"segments {names} are cold, and one segment takes their load with room to spare"
        return Verdict((Merge(tuple(segment.id for segment in run)),), reason)
    return _why_no_merge(observed, policy, cold)


def _why_no_merge(observed: Observed, policy: AutoScalePolicy, cold: dict[int, float | None]) -> Verdict:
    pairs = [(cold[left.id], cold[right.id]) for left, right in pairwise(observed.layout.active)]
    waits = [max(left, right) for left, right in pairs if left is not None and right is not None]
    later = [wait_s for wait_s in waits if wait_s > 0]
    if later:
        text = f"merge: cold neighbours must stay so for {min(later):.0f} s more"
        return Verdict(against=(text,), wait_s=min(later))
    if waits:
        least = max(policy.min_segments, observed.consumers)
        if _best_run(observed, policy, cold, len(observed.layout.active) - least + 1, inf):
            text = f"merge: cold neighbours were merged too often, maxDagDepth is {policy.max_dag_depth}"
            return Verdict(against=(text,), capped=frozenset(("max_dag_depth",)))
        return Verdict(against=("merge: cold neighbours together would be too full",))
    unknown = sum(observed.known(segment, policy) is None for segment in observed.layout.active)
    text = "merge: no two neighbours are cold"
    return Verdict(against=(f"{text}; the load of {unknown} segments is unknown" if unknown else text,))


def _cold_wait(segment: Segment, observed: Observed, policy: AutoScalePolicy) -> float | None:
    """Seconds that a cold segment must stay cold before a merge; None when it is not known to be cold."""
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
    """The longest run of neighbours that may become one segment; of equals the emptiest, then the lowest."""
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
    """Sums of the rates of the active segments from the left, from the empty sum; unknown rates are 0."""
    sums = [SegmentRates()]
    for segment in observed.layout.active:
        rates = observed.known(segment, policy) or SegmentRates()
        sums.append(SegmentRates(*(getattr(sums[-1], name) + getattr(rates, name) for name in METRICS)))
    return sums


def _fill_between(before: SegmentRates, after: SegmentRates, policy: AutoScalePolicy) -> float:
    joint = SegmentRates(*(getattr(after, name) - getattr(before, name) for name in METRICS))
    return fill_of(joint, policy)[0]
