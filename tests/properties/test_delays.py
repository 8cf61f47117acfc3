"""Laws of the queue of delayed entries, against a sorted list."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.dispatch.delays import Delayed, Delays

TIMES = st.one_of(st.integers(0, 30), st.integers(0, 2**62))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TIMES, st.integers(0, 65_535)),
        st.tuples(st.just("rising"), st.integers(0, 3), st.integers(0, 65_535)),
        st.tuples(st.just("pop"), TIMES, st.integers(1, 20)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=200,
)


@given(steps=STEPS, bin_entries=st.integers(2, 9))
def test_entries_come_out_when_their_time_comes_and_in_the_order_of_times(
    steps: list[tuple[str, int, int]], bin_entries: int
) -> None:
    delays = Delays(bin_entries)
    model: list[Delayed] = []
    latest = 0
    for ordinal, (step, number, other) in enumerate(steps):
        if step == "pop":
            due = [one for one in sorted(model) if one.at_ms <= number][:other]
            assert delays.pop_due(number, other) == due
            model = sorted(model)[len(due) :]
        elif step == "clear":
            delays.clear()
            model.clear()
        else:
            latest = number if step == "add" else latest + number
            delays.add(latest, ordinal, other)
            model.append(Delayed(latest, ordinal, other))
        assert len(delays) == len(model)
        assert delays.next_ms == min((one.at_ms for one in model), default=None)


def test_a_delayed_entry_takes_about_sixteen_bytes() -> None:
    tracemalloc.start()
    try:
        delays = Delays()
        before = tracemalloc.get_traced_memory()[0]
        for ordinal in range(100_000):
            delays.add(10**12 + ordinal * 7919 % 86_400_000, ordinal)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 20 * 100_000 + 400_000, "beside the bins, the near heap holds a few thousand pairs"
