from __future__ import annotations

import json

import pytest

from anabranch.errors import CorruptDataError
from anabranch.model.layout import Layout
from anabranch.model.ranges import HashRange
from anabranch.model.scaling.observed import (
    LoadHistory,
    Observed,
    SegmentRates,
    advance_history,
    count_merge,
    spare_buckets,
    wanted_buckets,
)
from anabranch.model.scaling.policy import AutoScalePolicy

POLICY = AutoScalePolicy()
PAIR = Layout.initial(2, now_ms=0)
IDLE = SegmentRates()
BUSY = SegmentRates(msg_rate_in=1_000)


def look(now_s: float, **rates: SegmentRates) -> Observed:
    return Observed(PAIR, {int(id_[1:]): found for id_, found in rates.items()}, now_s=now_s)


def test_cold_begins_when_it_is_first_known_and_ends_with_traffic() -> None:
    history = advance_history(LoadHistory(), look(10, s0=IDLE, s1=BUSY), POLICY)
    assert history.cold_since == {0: 10}
    history = advance_history(history, look(20, s0=IDLE, s1=IDLE), POLICY)
    assert history.cold_since == {0: 10, 1: 20}
    history = advance_history(history, look(30, s0=BUSY, s1=IDLE), POLICY)
    assert history.cold_since == {1: 20}


@pytest.mark.parametrize(
    "rates",
    [
        SegmentRates(bytes_rate_in=5_000_000),
        SegmentRates(msg_rate_out=5_000),
        SegmentRates(bytes_rate_out=25_000_000),
        SegmentRates(measured_s=1_000 - 121),
        SegmentRates(measured_s=1_000 + 121),
        SegmentRates(msg_rate_in=float("nan")),
        SegmentRates(msg_rate_in=-1),
        SegmentRates(bytes_rate_out=float("inf")),
    ],
)
def test_one_warm_stale_or_senseless_rate_ends_the_cold(rates: SegmentRates) -> None:
    before = LoadHistory(cold_since={0: 1, 1: 1})
    history = advance_history(before, look(1_000, s0=rates, s1=SegmentRates(measured_s=900)), POLICY)
    assert history.cold_since == {1: 1}


def test_a_missing_rate_ends_the_cold() -> None:
    assert advance_history(LoadHistory(cold_since={0: 1}), look(9), POLICY).cold_since == {}


def test_segments_that_are_gone_are_forgotten() -> None:
    before = LoadHistory(cold_since={0: 1, 7: 1}, surplus_since={7: 1})
    history = advance_history(before, look(9, s0=IDLE), POLICY)
    assert history.cold_since == {0: 1}
    assert history.surplus_since == {}


def test_a_clock_set_back_does_not_stretch_a_cooldown() -> None:
    before = LoadHistory(100, 200, 300, {0: 400})
    history = advance_history(before, look(50, s0=IDLE), POLICY)
    assert (history.last_split_s, history.last_merge_s, history.last_rebucket_s) == (50, 50, 50)
    assert history.cold_since == {0: 50}


def test_buckets_wanted_are_a_power_of_two_per_segment() -> None:
    def wanted(consumers: int) -> int:
        return wanted_buckets(Observed(PAIR, stream_consumers=consumers), POLICY)

    assert [wanted(count) for count in (0, 1, 2, 3, 8, 9, 5000)] == [1, 1, 1, 2, 4, 8, 1024]
    assert spare_buckets(Observed(PAIR), POLICY) == 4
    assert spare_buckets(Observed(PAIR, stream_consumers=9), POLICY) == 16


def test_too_many_buckets_are_noticed() -> None:
    layout = Layout.initial(1, now_ms=0, bucket_budget=16)
    history = advance_history(LoadHistory(), Observed(layout, now_s=5), POLICY)
    assert history.surplus_since == {0: 5}
    history = advance_history(history, Observed(layout, stream_consumers=3, now_s=6), POLICY)
    assert history.surplus_since == {}


def test_merges_are_counted_per_part_of_the_ring() -> None:
    history = count_merge(LoadHistory(), HashRange(0, 99))
    history = count_merge(history, HashRange(50, 149))
    assert history.merges == ((HashRange(0, 49), 1), (HashRange(50, 149), 2))
    history = count_merge(history, HashRange(60, 69))
    assert history.merges_in(HashRange(65, 200)) == 3
    assert history.merges_in(HashRange(70, 200)) == 2
    assert history.merges_in(HashRange(150, 200)) == 0
    history = count_merge(history, HashRange(0, 200))
    assert history.merges == ((HashRange(0, 200), 4),)


def test_history_survives_json() -> None:
    history = LoadHistory(1.5, None, 2, {3: 4.0}, {5: 6.0}, ((HashRange(0, 99), 2),))
    assert LoadHistory.from_json(json.loads(json.dumps(history.to_json()))) == history
    assert LoadHistory.from_json({}) == LoadHistory()


@pytest.mark.parametrize(
    "data",
    [{"lastSplitS": "x"}, {"coldSince": [1]}, {"coldSince": {"x": 1}}, {"merges": {"0-1": 1}}],
)
def test_broken_history_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError):
        LoadHistory.from_json(data)
