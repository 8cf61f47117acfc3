"""The drained buckets of a sealed log, and the life of their report, without a loop."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from anabranch.broker.dispatch.drains import (
    TRANSITIONS,
    DrainEffect,
    DrainEvent,
    DrainMachine,
    DrainState,
    PendingBuckets,
)
from anabranch.model.acks import AckSet
from anabranch.model.drains import union
from anabranch.model.hashing import bucket_index, bucket_ranges
from anabranch.model.ranges import HashRange


@given(st.data())
def test_a_bucket_is_drained_when_none_of_its_entries_is_pending(data: st.DataObject) -> None:
    splits = tuple(sorted(data.draw(st.sets(st.integers(2, 65535), max_size=5))))
    slot = st.integers(0, 65535)
    spans = st.one_of(st.none(), st.tuples(slot, slot).map(lambda pair: (min(pair), max(pair))))
    entries = data.draw(st.lists(spans, max_size=12))
    pending, acks = PendingBuckets(splits), AckSet()
    for ordinal, span in enumerate(entries):
        pending.add(ordinal, span)
    for acked in [None, *data.draw(st.permutations(range(len(entries))))]:
        if acked is not None:
            acks.acknowledge([acked])
        busy = set[int]()
        for ordinal, span in enumerate(entries):
            low, high = span or (0, 65535)
            if ordinal not in acks:
                busy.update(range(bucket_index(splits, low), bucket_index(splits, high) + 1))
        expected = union(part for at, part in enumerate(bucket_ranges(splits)) if at not in busy)
        assert pending.drained(acks) == expected


def test_a_million_pending_entries_cost_little_time() -> None:
    pending, acks = PendingBuckets((0x4000, 0x8000, 0xC000)), AckSet()
    begun_s = time.process_time()
    for at in range(4):
        pending.add_all(at, BitMap64(range(at, 1_000_000, 4)))
    acks.acknowledge(range(0, 1_000_000, 4))
    assert pending.drained(acks) == (HashRange(0, 0x3FFF),)
    acks.acknowledge_up_to(999_999)
    assert pending.drained(acks) == (HashRange(0, 0xBFFF),)
    assert time.process_time() - begun_s < 1


def lingering() -> DrainMachine:
    """The machine of a subscription that has read the buckets of its pending entries."""
    machine = DrainMachine()
    assert machine.handle(DrainEvent.ADVANCED) is None, "the log is not read to its end"
    assert machine.handle(DrainEvent.END_READ) is DrainEffect.READ_PENDING
    assert machine.handle(DrainEvent.END_READ) is None, "reading is under way"
    assert machine.handle(DrainEvent.PENDING_READ) is DrainEffect.REPORT_BUCKETS
    return machine


def test_an_acknowledgement_during_a_report_leads_to_another_report() -> None:
    machine = lingering()
    assert machine.handle(DrainEvent.ADVANCED) is None
    assert machine.handle(DrainEvent.BUCKETS_REPORTED) is DrainEffect.REPORT_BUCKETS
    assert machine.handle(DrainEvent.BUCKETS_REPORTED) is None
    assert machine.state is DrainState.KNOWN
    assert machine.handle(DrainEvent.ADVANCED) is DrainEffect.REPORT_BUCKETS


def test_the_end_is_reported_once_and_after_it_is_durable() -> None:
    machine = lingering()
    assert machine.handle(DrainEvent.ALL_ACKNOWLEDGED) is DrainEffect.MAKE_END_DURABLE
    assert machine.handle(DrainEvent.BUCKETS_REPORTED) is None, "single buckets do not matter any more"
    assert machine.handle(DrainEvent.END_NOT_DURABLE) is None
    assert machine.handle(DrainEvent.ALL_ACKNOWLEDGED) is DrainEffect.MAKE_END_DURABLE
    assert machine.handle(DrainEvent.END_DURABLE) is DrainEffect.REPORT_END
    assert machine.handle(DrainEvent.ALL_ACKNOWLEDGED) is None


@pytest.mark.parametrize("state", DrainState)
def test_a_moved_cursor_starts_again_and_forgets_the_results_of_earlier_effects(state: DrainState) -> None:
    machine = DrainMachine()
    machine.state = state
    before = machine.moves
    machine.cursor_moved()
    for event in DrainEvent:
        assert machine.result(before, event) is None
    assert machine.state is DrainState.UNKNOWN


def test_unreadable_entries_are_read_again() -> None:
    machine = DrainMachine()
    machine.handle(DrainEvent.END_READ)
    machine.handle(DrainEvent.PENDING_UNREADABLE)
    assert machine.handle(DrainEvent.END_READ) is DrainEffect.READ_PENDING
    assert machine.handle(DrainEvent.ALL_ACKNOWLEDGED) is DrainEffect.MAKE_END_DURABLE


def test_every_state_can_be_reached_and_every_effect_leads_on() -> None:
    reached = {DrainState.UNKNOWN} | {state for state, _ in TRANSITIONS.values()}
    assert reached == set(DrainState)
    assert {effect for _, effect in TRANSITIONS.values()} - {None} == set(DrainEffect)
