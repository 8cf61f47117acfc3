"""Auto-scaling decides on a split, a merge, a rebucket or no change, and gives the reasons.

`decide` is a pure function. It comes to rest under a steady load: a segment above a threshold is split into
parts well below it, and a merge is made only when the sum of its parts stays at half of every split threshold
and leaves a segment for each consumer. So a merge never leads to a split.

Example, with the default policy: segment 0 takes 25,000 messages/s, which is 250% of the split threshold of
10,000. It is split into four parts, because 2.5 / 0.75 rounds up to 4. Two segments with 200 and 300
messages/s are both cold (below 1,000); after 300 s in that state they are merged. A segment with 500
messages/s and four buckets that gets six stream consumers is not split, because its traffic is not worth it:
it gets eight buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.errors import counted
from anabranch.model.hashing import equal_bucket_splits
from anabranch.model.layout import Layout, Segment
from anabranch.model.ranges import HashRange
from anabranch.model.scaling.observed import (
    SURPLUS_FACTOR,
    LoadHistory,
    Observed,
    count_merge,
    spare_buckets,
    wanted_buckets,
)
from anabranch.model.scaling.policy import AutoScalePolicy
from anabranch.model.scaling.scale_plans import plan_merge, plan_splits
from anabranch.model.scaling.scale_steps import (
    Action,
    Cap,
    Keep,
    Merge,
    Rebucket,
    Split,
    Verdict,
    time_left_s,
)
from anabranch.model.scaling.weights import balanced_bucket_splits

SHRINK_WINDOWS = 10
"""A segment must have far too many buckets for this many merge windows before it loses some."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The action to take now, and the reasons."""

    action: Action
    reason: str
    against: tuple[str, ...] = ()
    """One sentence for each action that was considered and refused."""
    look_again_s: float | None = None
    """Seconds until a postponed action may be taken; None when only new facts can change the decision."""
    then: tuple[Action, ...] = ()
    """Further actions on other segments, to be taken right after `action` without another decision. If they
    are not taken, `decide` decides again after the cooldown."""
    capped: frozenset[Cap] = frozenset()
    """Limits of the policy that prevented an action that the load calls for."""


def decide(observed: Observed, policy: AutoScalePolicy) -> Decision:
    """Return the one action to take now; the next call must see the layout that this action makes."""
    # The order follows PIP-483: the split pass comes first and the merge pass only if nothing is split. More
    # buckets (PIP-486) go between the two, because idle consumers wait for them; a merge only saves
    # resources.
    if not policy.enabled:
        return Decision(Keep(), "auto-scaling is switched off for this topic")
    against: list[str] = []
    waits: list[float] = []
    capped: frozenset[Cap] = frozenset()
    kinds = (
        ("split", plan_splits, policy.split_cooldown_seconds),
        ("rebucket", _more_buckets, policy.rebucket_cooldown_seconds),
        ("merge", plan_merge, policy.merge_cooldown_seconds),
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
        if judge is plan_splits and verdict.wait_s is not None:
            # The postponed split will relieve the load, so no other action is needed until then.
            against += [f"{later}: comes after the split" for later, _, _ in kinds[place + 1 :]]
            break
    return Decision(Keep(), "nothing to do now", tuple(against), min(waits, default=None), capped=capped)


def record_action(history: LoadHistory, layout: Layout, action: Action, now_s: float) -> LoadHistory:
    """Return the history after an action was committed on this layout.

    Failed attempts must not be recorded.
    """
    if isinstance(action, Split):
        return replace(history, last_split_s=now_s)
    if isinstance(action, Merge):
        merged = HashRange.join(sorted(layout.segment(id_).range for id_ in action.segments))
        return count_merge(replace(history, last_merge_s=now_s), merged)
    if isinstance(action, Rebucket):
        return replace(history, last_rebucket_s=now_s)
    return history


def _more_buckets(observed: Observed, policy: AutoScalePolicy) -> Verdict:
    active, consumers = observed.layout.active, observed.stream_consumers
    buckets = sum(segment.bucket_count for segment in active)
    if consumers <= buckets:
        enough = "is enough" if buckets == 1 else "are enough"
        needs = counted(consumers, "stream consumer")
        return Verdict(against=(f"rebucket: {counted(buckets, 'bucket')} {enough} for {needs}",))
    target = wanted_buckets(observed, policy)
    small = [segment for segment in active if segment.bucket_count < target]
    have = f"{counted(buckets, 'bucket')} in {counted(len(active), 'segment')}"
    reason = f"{counted(consumers, 'stream consumer')} for {have}"
    if not small:
        return Verdict(against=(f"rebucket: {reason}, but entryBucketMaxPerSegment is {target}",))
    wait_s = time_left_s(observed.history.last_rebucket_s, policy.rebucket_cooldown_seconds, observed.now_s)
    if wait_s > 0:
        put_off = f"rebucket: {reason}; the rebucket cooldown runs for {wait_s:.0f} s more"
        return Verdict(against=(put_off,), wait_s=wait_s)
    reason += _by_traffic(small, observed, policy)
    return Verdict(tuple(_rebucket(segment, target, observed, policy) for segment in small), reason)


def _fewer_buckets(observed: Observed, policy: AutoScalePolicy) -> Verdict:
    target = spare_buckets(observed, policy)
    large = [segment for segment in observed.layout.active if segment.bucket_count >= SURPLUS_FACTOR * target]
    since = [observed.history.surplus_since.get(segment.id, observed.now_s) for segment in large]
    if not large:
        return Verdict(against=("rebucket down: no segment has far more buckets than consumers can use",))
    waits = (
        time_left_s(max(since), SHRINK_WINDOWS * policy.merge_window_seconds, observed.now_s),
        time_left_s(observed.history.last_rebucket_s, policy.rebucket_cooldown_seconds, observed.now_s),
    )
    far = f"at least {SURPLUS_FACTOR} times the {counted(target, 'bucket')} that are useful"
    reason = f"{counted(len(large), 'segment')} with {far}"
    if max(waits) > 0:
        put_off = f"rebucket down: {reason}, but not for long enough yet; {max(waits):.0f} s to go"
        return Verdict(against=(put_off,), wait_s=max(waits))
    reason += _by_traffic(large, observed, policy)
    return Verdict(tuple(_rebucket(segment, target, observed, policy) for segment in large), reason)


def _rebucket(segment: Segment, count: int, observed: Observed, policy: AutoScalePolicy) -> Rebucket:
    rates = observed.known(segment, policy)
    if rates is not None and rates.bucket_weights:
        return Rebucket(segment.id, balanced_bucket_splits(rates.bucket_weights, count))
    return Rebucket(segment.id, equal_bucket_splits(count))


def _by_traffic(segments: Sequence[Segment], observed: Observed, policy: AutoScalePolicy) -> str:
    known = [observed.known(segment, policy) for segment in segments]
    count = sum(rates is not None and bool(rates.bucket_weights) for rates in known)
    return f"; the bucket boundaries of {counted(count, 'segment')} follow the traffic" if count else ""
