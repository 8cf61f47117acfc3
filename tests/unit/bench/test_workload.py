"""The messages of `anabranch bench`: sizes, random values, keys by their distribution, and due times."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from anabranch.bench.workload import (
    MARK_BYTES,
    MARKED_BYTES,
    KeyDistribution,
    MessageSource,
    SendPace,
    SizeRange,
    Workload,
    due_of,
)
from anabranch.errors import InvalidConfigurationError


def source(
    size: str = "100", keys: int = 10, distribution: KeyDistribution = "uniform", mark: bytes = b""
) -> MessageSource:
    return MessageSource(Workload(SizeRange.parse(size), keys, distribution, mark), random.Random(1))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("0", SizeRange(0, 0)), ("100", SizeRange(100, 100)), ("50-2000", SizeRange(50, 2000))],
)
def test_a_size_is_a_number_or_a_range(text: str, sizes: SizeRange) -> None:
    assert SizeRange.parse(text) == sizes


@pytest.mark.parametrize("text", ["", "-5", "ten", "9-3", "1-2-3", "1e3", "10k"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="--size"):
        SizeRange.parse(text)


def test_values_are_random_and_have_their_size() -> None:
    values = source("100").values(1000)
    assert {len(value) for value in values} == {100}
    assert len(set(values)) == 1000


def test_random_sizes_reach_both_ends_of_their_range() -> None:
    sizes = Counter(len(value) for value in source("3-6").values(1000))
    assert set(sizes) == {3, 4, 5, 6}
    assert min(sizes.values()) > 150


def test_uniform_keys_come_about_equally_often() -> None:
    found = Counter(source(keys=10).keys(10_000))
    assert len(found) == 10
    assert min(found.values()) > 800


def test_zipf_gives_the_first_keys_most_messages() -> None:
    found = Counter(source(keys=4, distribution="zipf").keys(10_000))
    assert found["key-0"] == pytest.approx(4800, rel=0.1)
    assert found["key-3"] == pytest.approx(1200, rel=0.1)


def test_round_robin_takes_the_keys_in_turn_across_calls() -> None:
    keys = source(keys=3, distribution="round-robin")
    found = [*keys.keys(2), *keys.keys(5)]
    assert found[:3] == found[3:6]
    assert set(found) == {"key-0", "key-1", "key-2"}


def test_no_keys_means_messages_without_keys() -> None:
    assert source(keys=0).keys(2) == [None, None]


def test_a_marked_value_keeps_its_size_and_tells_when_it_was_due() -> None:
    mark = b"m" * MARK_BYTES
    marked = source(mark=mark).marked(b"x" * 40, 12.5)
    assert len(marked) == 40
    assert due_of(marked, mark) == 12.5
    assert due_of(marked, b"o" * MARK_BYTES) is None
    assert due_of(mark, mark) is None
    assert len(source(mark=mark).marked(b"x" * MARKED_BYTES, 1.0)) == MARKED_BYTES


def test_a_pace_has_messages_due_at_its_rate() -> None:
    pace = SendPace(10, began=100.0)
    assert (pace.due(100.0), pace.wait_s(100.0)) == (1, 0.0)
    assert pace.take() == 100.0
    assert pace.due(100.05) == 0
    assert pace.wait_s(100.05) == pytest.approx(0.05)
    assert pace.due(101.0) == 10
    assert pace.take(10) == pytest.approx(101.0)
    assert pace.due(101.0) == 0
