from __future__ import annotations

from collections.abc import Iterable

import pytest

from anabranch.broker.serving.log.traffic import LOAD_SHIFT, SAMPLES_MAX, TrafficMeter
from anabranch.model.hashing import key_hash
from anabranch.model.ranges import FULL
from anabranch.model.traffic_sketch import NO_TRAFFIC
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.singles import build_single


def entry_of(key: str | bytes | None, value: bytes = b"v") -> bytes:
    return build_single(value, key, 1, "p", 1)


def publish(meter: TrafficMeter, entries: Iterable[bytes], count: int = 1) -> None:
    for entry in entries:
        meter.left -= count + (len(entry) >> LOAD_SHIFT)
        if meter.left <= 0:
            meter.take(entry)


def test_every_entry_of_a_slow_log_is_sampled() -> None:
    meter = TrafficMeter()
    publish(meter, [entry_of("a"), entry_of("b"), entry_of("a")] * 40)
    assert [(hot.key, round(hot.share, 3)) for hot in meter.hottest(5)] == [(b"a", 0.667), (b"b", 0.333)]
    assert meter.hottest(1)[0].hash == key_hash("a")


@pytest.mark.parametrize("period", [2, 7, 16, 64])
def test_keys_that_come_in_turns_are_all_seen_by_a_busy_log(period: int) -> None:
    meter = TrafficMeter()
    turns = [entry_of(f"k{index}") for index in range(period)]
    for _ in range(5):
        publish(meter, turns * (20_000 // period))
        meter.age()
    shares = [weight / 100_000 for _, weight in meter.summary().ring_weights(FULL)]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    assert max(shares) < 3 / period


def test_samples_become_rare_under_load_and_frequent_again() -> None:
    meter, sampled = TrafficMeter(), 0
    entry = entry_of("a")
    for _ in range(100_000):
        meter.left -= 1
        if meter.left <= 0:
            sampled += 1
            meter.take(entry)
    assert sampled < 10 * SAMPLES_MAX
    for _ in range(12):
        meter.age()
    before = sampled
    for _ in range(50):
        meter.left -= 1
        if meter.left <= 0:
            sampled += 1
            meter.take(entry)
    assert sampled - before >= 45


def test_an_idle_log_keeps_no_sketch_and_begins_again() -> None:
    meter = TrafficMeter()
    publish(meter, [entry_of("a")] * 1000)
    assert meter.summary() != NO_TRAFFIC
    for _ in range(100):
        meter.age()
    assert meter.summary() == NO_TRAFFIC
    publish(meter, [entry_of("b")] * 40)
    assert [hot.key for hot in meter.hottest(5)] == [b"b"]


def test_large_entries_count_by_their_bytes() -> None:
    meter = TrafficMeter()
    publish(meter, [entry_of("small"), entry_of("large", bytes(99 << LOAD_SHIFT))] * 40)
    assert [(hot.key, round(hot.share, 2)) for hot in meter.hottest(5)] == [(b"large", 0.99)]


def test_a_batch_counts_with_all_its_messages_for_its_sample_key() -> None:
    batch = MessageBatch()
    batch.add_many([b"v"] * 3, ["a", "b", "b"], [1, 2, 3])
    batch.sample_key = b"b"
    entry = batch.build("p", 1)
    meter = TrafficMeter()
    publish(meter, [entry] * 40, count=3)
    assert [hot.key for hot in meter.hottest(5)] == [b"b"]


def test_entries_without_a_key_or_without_readable_metadata_have_no_place() -> None:
    meter = TrafficMeter()
    publish(meter, [entry_of(None), b"damaged"] * 20)
    assert meter.hottest(5) == ()
    assert meter.summary().keyless == 100_000


def test_a_key_that_is_not_text_is_hashed_as_its_bytes() -> None:
    meter = TrafficMeter()
    publish(meter, [entry_of(b"\xff\x00")] * 40)
    assert meter.hottest(1)[0].hash == key_hash(b"\xff\x00")
