"""StartTimes as users write them, and the cut of a DAG at a time."""

from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.model.layout import Layout
from anabranch.spark.decide.source.moments import moment_ms, parse_moments
from anabranch.spark.decide.source.offsets import Cut, Start, decode, encode
from anabranch.spark.decide.source.starts import resolve_time
from anabranch.spark.options.queries import read_source_options
from tests.unit.spark.plans import T, split_once, topology

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 22:13:20.5", 1_700_000_000_500),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
        ("-10m", NOW_MS - 600_000),
        ("-1.5s", NOW_MS - 1_500),
    ],
)
def test_a_moment_is_milliseconds_an_iso_time_or_a_time_before_now(text: str, expected: int) -> None:
    assert moment_ms(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["soon", "-10", "10m", "-5y"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ISO time"):
        moment_ms(text, NOW_MS)


def test_times_by_topic_are_json() -> None:
    assert parse_moments('{"a": 17, "b": "-10m"}', "o") == {"a": "17", "b": "-10m"}
    for text in ("[]", '{"a": true}', '{"a": "soon"}', "{"):
        with pytest.raises(InvalidConfigurationError, match="option o"):
            parse_moments(text, "o")


def at(places: dict[int, int], layout: Layout, strategy: str = "error", **counts: int) -> dict[int, int]:
    view = topology(layout, **counts)
    return dict(resolve_time(places, view, T, "then", strategy).positions)  # type: ignore[arg-type]


def test_an_ancestor_that_ended_before_the_time_is_passed() -> None:
    assert at({0: 5, 1: 2, 2: 4}, split_once(), s0=5, s1=3, s2=4) == {1: 2, 2: 4}


def test_a_time_inside_a_parent_leaves_its_children_whole() -> None:
    # A child may hold an earlier time when clocks differ; the parent comes first all the same.
    assert at({0: 3, 1: 2, 2: 0}, split_once(), s0=5, s1=3, s2=4) == {0: 3}


def test_a_merged_segment_waits_for_the_parent_that_is_still_due() -> None:
    layout = split_once().merge([1, 2], now_ms=0)
    assert at({0: 5, 1: 3, 2: 1, 3: 0}, layout, s0=5, s1=3, s2=4, s3=2) == {1: 3, 2: 1}


def test_a_time_after_the_last_message_is_an_error_or_the_end() -> None:
    places = {0: 5, 1: 3, 2: 4}
    with pytest.raises(InvalidConfigurationError, match="then or later"):
        at(places, split_once(), s0=5, s1=3, s2=4)
    assert at(places, split_once(), "latest", s0=5, s1=3, s2=4) == {1: 3, 2: 4}


def given(**options: str) -> Start | None:
    return read_source_options({"service.url": "pulsar://h:1", "subscribe": "a,b", **options}).starting


def test_a_start_by_time_survives_the_offset_json() -> None:
    start = given(startingTimestamp="-10m", startingOffsetsByTimestamp='{"a": 17}')
    assert start is not None
    assert start.times is not None
    assert (start.times.of("a"), start.times.of("b")) == ("17", "-10m")
    assert decode(encode(start)) == start


def test_offsets_say_where_topics_without_a_time_start() -> None:
    start = given(
        startingOffsets='{"v":1,"topics":{"b":{"segs":{"0":7}}}}', startingOffsetsByTimestamp='{"a":1}'
    )
    assert start is not None
    assert isinstance(start.at, Cut)
    assert start.at.topics["b"].positions == {0: 7}


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"v":1,"topics":{"c":{"segs":{"0":7}}}}'},
        {"startingOffsetsByTimestamp": '{"c": 1}'},
        {"endingOffsetsByTimestamp": '{"c": 1}'},
        {"endingOffsets": '{"v":1,"topics":{"c":{"segs":{"0":7}}}}'},
    ],
)
def test_a_start_or_end_of_a_topic_that_is_not_read_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigurationError, match="names c, but the query reads a, b"):
        given(**options)


def test_a_start_from_a_subscription_needs_its_name() -> None:
    with pytest.raises(InvalidConfigurationError, match="needs the option subscription"):
        given(startingOffsets="subscription")
    assert given(startingOffsets="subscription", subscription="s") == Start("subscription")
