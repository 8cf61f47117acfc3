"""The statistics of `anabranch bench`: percentiles, rates, intervals and failures."""

from __future__ import annotations

import random

import pytest

from anabranch.bench.tally import BenchTally, Latencies, figures


def test_percentiles_are_exact_to_one_per_cent() -> None:
    rng = random.Random(1)
    times = [rng.lognormvariate(-6, 2) for _ in range(10_000)]
    found = Latencies()
    for seconds in times:
        found.add(seconds)
    times.sort()
    for share in (0.01, 0.5, 0.95, 0.99, 0.999):
        assert found.percentile(share) == pytest.approx(times[int(share * len(times)) - 1], rel=0.0101)
    assert found.percentile(1) == found.max_s == times[-1]
    assert found.total_s == pytest.approx(sum(times))


def test_a_group_of_messages_counts_for_each() -> None:
    found = Latencies()
    found.add(0.001, 99)
    found.add(1.0)
    assert found.percentile(0.99) == pytest.approx(0.001, rel=0.011)
    assert found.percentile(0.999) == 1.0


def test_no_latencies_are_zero() -> None:
    assert set(Latencies().milliseconds().values()) == {0.0}


@pytest.mark.parametrize("seconds", [0.0, -0.001, 1e-9])
def test_a_latency_below_a_microsecond_is_counted(seconds: float) -> None:
    found = Latencies()
    found.add(seconds)
    assert found.count == 1
    assert found.percentile(0.5) <= 1e-6


def test_an_interval_has_what_came_since_the_last_one() -> None:
    tally = BenchTally()
    tally.start(10.0)
    tally.add(10.5, 100, 1000, 0.002)
    first = tally.take(12.0)
    assert (first.seconds, first.messages, first.rates()) == (2.0, 100, (50.0, 500.0))
    assert tally.take(13.0).messages == 0


def test_the_whole_run_ends_with_its_last_message() -> None:
    tally = BenchTally()
    tally.start(10.0)
    tally.add(11.0, 60, 600)
    tally.take(11.5)
    tally.add(12.0, 40, 400)
    tally.take(20.0)
    whole = tally.whole()
    assert (whole.messages, whole.bytes, tally.messages) == (100, 1000, 100)
    assert whole.seconds == pytest.approx(2.0)
    assert whole.rates() == pytest.approx((50.0, 500.0))


def test_time_counts_from_the_first_start() -> None:
    tally = BenchTally()
    tally.start(10.0)
    tally.start(11.0)
    tally.add(12.0, 1, 1)
    assert tally.whole().seconds == 2.0


def test_failures_are_counted_by_their_error() -> None:
    tally = BenchTally()
    tally.fail(ValueError("too large"), 2)
    tally.fail(ValueError("too large"), 1)
    found = figures(tally.whole(), tally.errors)
    assert (found["errors"], found["messages"]) == ({"ValueError: too large": 3}, 0)
    assert "latency_ms" not in found
