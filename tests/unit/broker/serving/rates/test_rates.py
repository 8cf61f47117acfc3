"""Rates out of counters."""

from __future__ import annotations

import pickle

import pytest

from anabranch.broker.serving.rates.rate_meter import RateMeter


def test_a_steady_count_gives_its_rate() -> None:
    meter = RateMeter(10.0, 0.0, (0,))
    for second in range(1, 41):
        meter.sample(second, (100 * second,))
    assert meter.rates(40.0, (4000,)) == pytest.approx((100.0,))


def test_a_first_burst_is_averaged_over_the_whole_window() -> None:
    meter = RateMeter(10.0, 0.0, (0, 0))
    assert meter.rates(0.001, (1000, 5)) == (100.0, 0.5)


def test_a_burst_is_forgotten_after_a_window() -> None:
    meter = RateMeter(10.0, 0.0, (0,))
    meter.sample(2.0, (1000,))
    for second in range(4, 14, 2):
        meter.sample(second, (1000,))
    assert meter.rates(14.0, (1000,)) == (0.0,)


def test_samples_do_not_pile_up() -> None:
    meter = RateMeter(10.0, 0.0, (0,))
    for step in range(10_000):
        meter.sample(step * 2.0, (step,))
    assert len(pickle.dumps(meter)) < 1000
