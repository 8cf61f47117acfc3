"""From a request to a cut."""

from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.source.offsets import TopicCut
from anabranch.spark.decide.source.starts import resolve
from anabranch.spark.decide.source.topology import SegmentSpan, Topology
from tests.unit.spark.plans import T, split_once, topology


def test_latest_starts_behind_what_the_active_segments_hold() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    assert resolve("latest", view, T).positions == {1: 3, 2: 4}


def test_earliest_starts_at_the_oldest_segment() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    assert resolve("earliest", view, T).positions == {0: 0}


def test_earliest_passes_segments_with_nothing_left_because_their_children_may_be_trimmed_too() -> None:
    layout = split_once()
    view = Topology(
        layout, {0: SegmentSpan(5, 5, True), 1: SegmentSpan(2, 3, False), 2: SegmentSpan(0, 4, False)}
    )
    assert resolve("earliest", view, T).positions == {1: 2, 2: 0}


def test_a_requested_cut_must_cover_all_keys_and_read_no_key_twice() -> None:
    view = topology(split_once(), s0=5, s1=3, s2=4)
    assert resolve(TopicCut({1: 3, 2: 0}), view, T).positions == {1: 3, 2: 0}
    for positions, word in (
        ({1: 3}, "8000-ffff"),
        ({9: 3}, "9"),
        ({1: 4, 2: 0}, "beyond"),
        ({0: 2, 1: 0, 2: 0}, "at once"),
    ):
        with pytest.raises(InvalidConfigurationError, match=word):
            resolve(TopicCut(positions), view, T)
