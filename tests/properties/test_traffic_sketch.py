from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.model.ranges import FULL, HashRange
from anabranch.model.scaling.traffic_sketch import HEAVY_MAX, SAMPLES_MIN, SHARE_MIN, TrafficSketch

raw_hashes = st.integers(0, 2**32 - 1)
streams = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 80).map(lambda key: key * 0x0133_7F4B % 2**32), raw_hashes),
        st.integers(1, 50),
    ),
    min_size=int(SAMPLES_MIN),
    max_size=200,
)


@given(streams)
def test_no_share_is_overstated_and_no_heavy_hash_is_missed(stream: list[tuple[int, int]]) -> None:
    sketch, true = TrafficSketch(), Counter[int]()
    for raw, weight in stream:
        sketch.add(raw, weight, b"k%d" % raw)
        true[raw] += weight
    total = sum(true.values())
    found = {hot.hash: hot for hot in sketch.hottest(HEAVY_MAX)}
    for raw, hot in found.items():
        assert hot.share <= true[raw] / total + 1e-9
        assert hot.key == b"k%d" % raw
    for raw, weight in true.items():
        # A count is too low by 1/HEAVY_MAX at most.
        if weight / total >= SHARE_MIN + 1 / HEAVY_MAX + 1e-9:
            assert found[raw].share >= weight / total - 1 / HEAVY_MAX - 1e-9


@given(streams, st.integers(0, 50))
def test_all_load_is_in_the_weights_and_in_its_cell(stream: list[tuple[int, int]], keyless: int) -> None:
    sketch = TrafficSketch()
    for raw, weight in stream:
        sketch.add(raw, weight, b"")
    sketch.add_keyless(keyless)
    total = keyless + sum(weight for _, weight in stream)
    summary = sketch.summary()
    for cells, shift in ((summary.ring_weights(FULL), 16), (summary.bucket_weights(), 0)):
        sums = sum(weight for _, weight in cells)
        assert abs(sums / 100_000 - 1) < 0.01
        true = keyless / 2 + sum(weight for raw, weight in stream if (raw >> shift) & 0xFFFF < 0x8000)
        seen = sum(weight / 2 if cell == FULL else weight for cell, weight in cells if cell.start < 0x8000)
        assert abs(seen / 100_000 - true / total) < 0.01


@given(streams, st.floats(0.1, 1.0), st.integers(1, 5))
def test_decay_keeps_all_shares(stream: list[tuple[int, int]], factor: float, times: int) -> None:
    sketch, kept = TrafficSketch(), TrafficSketch()
    for raw, weight in stream:
        sketch.add(raw, weight, b"")
        kept.add(raw, weight, b"")
    for _ in range(times):
        sketch.decay(factor)
    assert abs(sketch.total - kept.total * factor**times) < 1e-6 * kept.total
    if sketch.samples >= SAMPLES_MIN:
        before = {hot.hash: hot.share for hot in kept.hottest(HEAVY_MAX)}
        for hot in sketch.hottest(HEAVY_MAX):
            # A share at the very limit of a hot hash may fall on either side of it.
            assert abs(hot.share - before.get(hot.hash, SHARE_MIN)) < 1e-6


@given(st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)), st.data())
@settings(max_examples=50)
def test_cells_lie_inside_the_range_of_the_segment(ends: tuple[int, int], data: st.DataObject) -> None:
    whole = HashRange(min(ends), max(ends))
    sketch = TrafficSketch(whole)
    slots = data.draw(st.lists(st.integers(whole.start, whole.end), min_size=40, max_size=60))
    for slot in slots:
        sketch.add(slot << 16, 1, b"")
    cells = sketch.summary().ring_weights(whole)
    assert all(whole.start <= cell.start <= cell.end <= whole.end for cell, _ in cells)
    for slot in slots:
        assert any(slot in cell for cell, _ in cells)
