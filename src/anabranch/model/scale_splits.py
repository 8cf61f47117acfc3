"""Auto-scaling: which segments to split, and where."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from anabranch.model.layout import Segment
from anabranch.model.observed import Observed
from anabranch.model.policy import AutoScalePolicy, json_name
from anabranch.model.scale_steps import Action, Cap, Split, Verdict, fill_of, time_left_s
from anabranch.model.weights import balanced_points, largest_share

SPLIT_FILL = 0.75
"""A split makes enough parts that each reaches at most this share of the split threshold."""
HOPELESS_SHARE = 0.9
"""A split is refused if its heaviest part would keep more than this share of the load."""

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
        """Split segments above a split threshold, the fullest first."""
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
        """Reach min_segments, and one segment per consumer where the traffic is worth a split."""
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
