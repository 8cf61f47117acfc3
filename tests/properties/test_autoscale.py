"""Auto-scaling run against a steady load until it falls silent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.model.autoscale import Decision, decide, record_action
from anabranch.model.layout import Layout
from anabranch.model.observed import METRICS, NO_HISTORY, LoadHistory, Observed, SegmentRates, advance_history
from anabranch.model.policy import AutoScalePolicy, check_policy
from anabranch.model.ranges import HASH_SLOTS, HashRange
from anabranch.model.scale_steps import Action, Keep, Merge, Rebucket, Split
from simulation.judges.layout_checks import check_step
from tests.properties.layouts import layouts

Cells = list[tuple[HashRange, SegmentRates]]


@dataclass
class SteadyLoad:
    """A topic under a load that never changes; time jumps from one look to the next."""

    layout: Layout
    cells: Cells
    consumers: int
    policy: AutoScalePolicy
    sketch: bool = False
    history: LoadHistory = NO_HISTORY
    now_s: float = 0.0
    steps: int = 0

    def rates(self, part: HashRange) -> SegmentRates:
        sums = SegmentRates()
        weights = []
        for cell, rates in self.cells:
            if cell.overlaps(part):
                width = min(cell.end, part.end) - max(cell.start, part.start) + 1
                weights.append((cell, rates.msg_rate_in))
                sums = SegmentRates(
                    *(getattr(sums, name) + getattr(rates, name) * width / cell.width for name in METRICS)
                )
        return replace(sums, weights=tuple(weights) if self.sketch else ())

    def observe(self) -> Observed:
        rates = {segment.id: self.rates(segment.range) for segment in self.layout.active}
        observed = Observed(self.layout, rates, self.consumers, self.history, self.now_s)
        self.history = advance_history(self.history, observed, self.policy)
        return replace(observed, history=self.history)

    def look(self) -> Decision:
        decision = decide(self.observe(), self.policy)
        for action in (decision.action, *decision.then):
            if not isinstance(action, Keep):
                self.carry_out(action)
        return decision

    def carry_out(self, action: Action) -> None:
        before, policy = self.layout, self.policy
        self.steps += 1
        if isinstance(action, Split):
            self.layout = before.split(action.segment, action.points, now_ms=0)
            assert len(self.layout.active) <= policy.max_segments
        elif isinstance(action, Merge):
            self.layout = before.merge(action.segments, now_ms=0)
            assert len(self.layout.active) >= max(policy.min_segments, self.consumers)
            last = self.history.last_split_s
            assert last is None or self.now_s - last >= policy.split_cooldown_seconds
        elif isinstance(action, Rebucket):
            self.layout = before.rebucket(action.segment, action.splits, now_ms=0)
        self.history = record_action(self.history, before, action, self.now_s)
        assert check_step(before, self.layout) == ()
        # What is read and gone is pruned at once: no rule may lean on old parents.
        self.layout = self.layout.prune([segment.id for segment in self.layout.sealed])

    def run_until_silent(self) -> None:
        for _ in range(600):
            decision = self.look()
            if decision.look_again_s is None:
                assert decision.action == Keep()
                return
            self.now_s += decision.look_again_s
        raise AssertionError(f"no silence after {self.steps} steps: {decision}")


@st.composite
def policies(draw: st.DrawFn) -> AutoScalePolicy:
    split = draw(st.sampled_from([10.0, 1_000.0, 10_000.0]))
    merge = split * draw(st.sampled_from([0.0, 0.1, 0.5, 0.99]))
    least = draw(st.integers(1, 6))
    policy = AutoScalePolicy(
        min_segments=least,
        max_segments=least + draw(st.integers(0, 20)),
        max_dag_depth=draw(st.sampled_from([0, 1, 10, 1000])),
        split_msg_rate_in_threshold=split,
        merge_msg_rate_in_threshold=merge,
        split_bytes_rate_out_threshold=split * 7,
        merge_bytes_rate_out_threshold=merge * 7,
        split_cooldown_seconds=draw(st.sampled_from([0.0, 60.0, 600.0])),
        merge_cooldown_seconds=draw(st.sampled_from([0.0, 300.0])),
        merge_window_seconds=draw(st.sampled_from([0.0, 300.0])),
        rebucket_cooldown_seconds=draw(st.sampled_from([0.0, 60.0])),
        split_vs_rebucket_min_msg_rate_in_threshold=draw(st.sampled_from([0.0, 1.0, 1_000.0])),
        entry_bucket_max_per_segment=draw(st.sampled_from([1, 4, 1024])),
    )
    assert check_policy(policy) == ()
    return policy


@st.composite
def loads(draw: st.DrawFn) -> Cells:
    cells = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, HASH_SLOTS - 1))
        width = draw(st.sampled_from([1, 2, 100, 10_000, HASH_SLOTS]))
        rate = draw(st.sampled_from([0.5, 8.0, 300.0, 5_000.0, 40_000.0]))
        share = draw(st.sampled_from([0.0, 1.0, 9.0]))
        part = HashRange(start, min(HASH_SLOTS - 1, start + width - 1))
        cells.append((part, SegmentRates(msg_rate_in=rate, bytes_rate_out=rate * share)))
    return cells


@given(layouts(steps=3), loads(), st.integers(0, 12), policies(), st.booleans())
@settings(max_examples=150)
def test_a_steady_load_leads_to_silence(
    layout: Layout, cells: Cells, consumers: int, policy: AutoScalePolicy, sketch: bool
) -> None:
    load = SteadyLoad(layout, cells, consumers, policy, sketch)
    load.run_until_silent()
    steps, layout = load.steps, load.layout
    for _ in range(48):
        load.now_s += 1800
        assert load.look().action == Keep()
    assert (load.steps, load.layout) == (steps, layout)


@given(layouts(steps=3), loads(), st.integers(0, 12), policies())
def test_after_the_silence_nothing_that_can_be_cut_is_too_full(
    layout: Layout, cells: Cells, consumers: int, policy: AutoScalePolicy
) -> None:
    load = SteadyLoad(layout, cells, consumers, policy)
    load.run_until_silent()
    active = load.layout.active
    full = [
        segment
        for segment in active
        if load.rates(segment.range).msg_rate_in > policy.split_msg_rate_in_threshold
        and segment.range.width > 1
    ]
    assert not full or len(active) >= policy.max_segments
    assert len(active) >= policy.min_segments


@given(st.integers(1, 16), st.integers(0, 16), st.integers(1, 16))
def test_an_idle_topic_with_any_consumers_never_swings(segments: int, consumers: int, budget: int) -> None:
    layout = Layout.initial(segments, now_ms=0, bucket_budget=budget)
    load = SteadyLoad(layout, [], consumers, AutoScalePolicy())
    actions = []
    for _ in range(3 * 60):
        decision = load.look()
        actions += [type(step) for step in (decision.action, *decision.then) if not isinstance(step, Keep)]
        load.now_s += 60
    assert Split not in actions
    assert actions.count(Merge) <= 1


@given(st.lists(st.tuples(st.integers(0, 8), loads()), min_size=2, max_size=12))
@settings(max_examples=40)
def test_merges_of_one_lineage_stay_bounded_however_the_load_swings(
    times: list[tuple[int, Cells]],
) -> None:
    policy = AutoScalePolicy(max_dag_depth=2, max_segments=16)
    load = SteadyLoad(Layout.initial(4, now_ms=0), [], 0, policy)
    for consumers, cells in times:
        load.consumers, load.cells = consumers, cells
        for _ in range(20):
            load.look()
            load.now_s += 100
    assert all(count <= 2 for _, count in load.history.merges)


@given(layouts(steps=2), loads(), st.integers(0, 12), policies(), st.data())
def test_stale_or_missing_load_never_causes_a_merge(
    layout: Layout, cells: Cells, consumers: int, policy: AutoScalePolicy, data: st.DataObject
) -> None:
    load = SteadyLoad(layout, cells, consumers, policy)
    load.now_s = 1e6
    observed = load.observe()
    old = observed.now_s - policy.load_stale_seconds - 1
    rates = {
        id_: replace(found, measured_s=old)
        for id_, found in observed.rates.items()
        if data.draw(st.booleans())
    }
    history = LoadHistory(cold_since=dict.fromkeys(layout.segments, 0.0))
    decision = decide(replace(observed, rates=rates, history=history), policy)
    assert not any(isinstance(step, Merge) for step in (decision.action, *decision.then))
