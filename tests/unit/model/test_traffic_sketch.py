from __future__ import annotations

import pytest

from anabranch.model.hashing import key_hash
from anabranch.model.ranges import FULL, HashRange
from anabranch.model.scaling.traffic_sketch import KEY_BYTES_MAX, NO_TRAFFIC, TrafficSketch
from anabranch.model.scaling.weights import balanced_points, largest_share


def filled(keys: dict[str, int], whole: HashRange = FULL) -> TrafficSketch:
    sketch = TrafficSketch(whole)
    for turn in range(max(keys.values())):
        for key, times in keys.items():
            if turn < times:
                sketch.add(key_hash(key), 1, key.encode())
    return sketch


def test_few_samples_say_nothing() -> None:
    sketch = filled({"a": 29})
    assert sketch.hottest() == ()
    assert sketch.summary() == NO_TRAFFIC
    assert NO_TRAFFIC.ring_weights(FULL) == NO_TRAFFIC.bucket_weights() == ()
    sketch.add_keyless(1)
    assert sketch.hottest()[0].share == 29 / 30


def test_the_hottest_keys_come_first_with_their_names() -> None:
    found = filled({"a": 100, "b": 200, **{f"k{i}": 1 for i in range(10)}}).hottest(2)
    assert [(hot.shown_key, round(hot.share, 2)) for hot in found] == [("b", 0.65), ("a", 0.32)]
    assert found[0].hash == key_hash("b")


def test_a_hot_hash_is_a_slot_of_its_own_among_the_weights() -> None:
    sketch = filled({"a": 60, **{f"k{i}": 1 for i in range(40)}})
    hot = key_hash("a")
    ring, buckets = sketch.summary().ring_weights(FULL), sketch.summary().bucket_weights()
    assert dict(ring)[HashRange(hot >> 16, hot >> 16)] == pytest.approx(60_000, abs=1_000)
    assert dict(buckets)[HashRange(hot & 0xFFFF, hot & 0xFFFF)] == pytest.approx(60_000, abs=1_000)
    assert largest_share(FULL, ring, balanced_points(FULL, ring, 3)) < 0.63


def test_load_without_a_key_is_spread_over_the_range() -> None:
    whole = HashRange(0x4000, 0x7FFF)
    sketch = TrafficSketch(whole)
    for _ in range(30):
        sketch.add_keyless(2)
    assert sketch.summary().ring_weights(whole) == ((whole, 100_000.0),)
    assert sketch.summary().bucket_weights() == ((FULL, 100_000.0),)


def test_a_hash_beyond_the_range_has_no_place() -> None:
    whole = HashRange(0x4000, 0x7FFF)
    sketch = TrafficSketch(whole)
    for _ in range(30):
        sketch.add(0xFFFF_0000, 1, b"elsewhere")
    assert sketch.hottest() == ()
    assert sketch.summary().keyless == 100_000


def test_a_segment_of_few_slots_has_as_many_cells() -> None:
    whole = HashRange(10, 12)
    sketch = TrafficSketch(whole)
    for index in range(90):
        sketch.add((10 + index % 3 << 16) + index, 1, b"")
    for slot in (10, 11, 12):
        weights = [weight for cell, weight in sketch.summary().ring_weights(whole) if slot in cell]
        assert 33_000 < sum(weights) < 34_000


def test_a_long_key_is_cut_off_and_any_key_can_be_shown() -> None:
    sketch = TrafficSketch()
    for _ in range(30):
        sketch.add(1, 1, b"\xff" + b"x" * 1000)
    (hot,) = sketch.hottest()
    assert len(hot.key) == KEY_BYTES_MAX
    assert hot.shown_key.startswith("\\xffxxx")


def test_shares_survive_any_number_of_decays() -> None:
    sketch = TrafficSketch()
    for _ in range(300):
        for key in ("a", "a", "b"):
            sketch.add(key_hash(key), 10, key.encode())
        sketch.decay(0.9)
    assert sketch.total == pytest.approx(270)
    assert [round(hot.share, 3) for hot in sketch.hottest()] == []
    for _ in range(20):
        sketch.add_keyless(13.5)
    assert [(hot.key, round(hot.share, 3)) for hot in sketch.hottest()] == [(b"a", 0.333), (b"b", 0.167)]
