"""The lag of a query from the two offsets of a progress event."""

from __future__ import annotations

import json
from collections.abc import Mapping

from anabranch.spark.decide.source.lag import lag_between, newest_ends
from anabranch.spark.decide.source.offsets import Cut, TopicCut, decode, encode
from anabranch.spark.decide.source.places import MessagePlace, position_of
from anabranch.spark.decide.source.topology import SegmentSpan, Topology
from anabranch.spark.lag import LagListener, lag_of
from tests.unit.spark.plans import T, cut, split_once, topology


def test_messages_of_later_generations_count() -> None:
    view = {T: topology(split_once(), s0=5, s1=3, s2=4)}
    reached = cut(s0=2)
    found = lag_between(reached, newest_ends(view, reached))
    assert found.topics[T].segments == {0: 3, 1: 3, 2: 4}
    assert (found.messages, found.most, found.least, found.mean) == (10, 4, 3, 10 / 3)


def test_a_passed_ancestor_counts_no_more() -> None:
    view = {T: topology(split_once(), s0=5, s1=3, s2=4)}
    reached = cut(s1=3, s2=1)
    assert lag_between(reached, newest_ends(view, reached)).topics[T].segments == {1: 0, 2: 3}


def test_the_reported_ends_are_a_cut_at_the_end_of_the_topic() -> None:
    view = {T: topology(split_once(), s0=5, s1=3, s2=4)}
    assert newest_ends(view, None) == Cut({T: TopicCut({1: 3, 2: 4}, view[T].layout.epoch)})


def test_the_lag_on_pulsar_counts_entries_and_estimates_their_messages() -> None:
    first, next_ = (position_of(MessagePlace(5, entry)) for entry in (0, 7))
    tails = {id_: SegmentSpan(first, next_, False, 10.0) for id_ in (1, 2)}
    tails[0] = SegmentSpan(first, first, True, 10.0)
    view = {T: Topology(split_once(), tails)}
    reached = cut(s1=position_of(MessagePlace(5, 3)), s2=0)
    newest = newest_ends(view, reached)
    assert decode(encode(newest)) == newest
    assert lag_between(reached, newest).topics[T].segments == {1: 40, 2: 70}


def test_metrics_have_the_names_of_the_kafka_source() -> None:
    found = lag_between(cut(s1=3, s2=1), cut(s1=3, s2=4)).metrics()
    assert found["maxOffsetsBehindLatest"] == "3"
    assert found["avgOffsetsBehindLatest"] == "1.5"
    assert found[f"offsetsBehindLatest.{T}"] == "3"


def test_places_of_pulsar_are_not_counted() -> None:
    place = position_of(MessagePlace(ledger=3, entry=0))
    assert lag_between(cut(s0=place), cut(s0=place + 7)).topics == {}


class ProgressEvent:
    """A progress event as Spark passes it to listeners."""

    def __init__(self, name: str | None, *sources: Mapping[str, object]) -> None:
        self.json = json.dumps({"sources": sources})
        self.name, self.id, self.timestamp = name, "7", "2026-01-01"
        self.progress = self


def source(reached: Cut, newest: Cut) -> dict[str, object]:
    return {"endOffset": encode(reached), "latestOffset": json.dumps(encode(newest))}


def test_the_listener_keeps_the_newest_lag_of_each_query() -> None:
    listener = LagListener()
    for done in (1, 4):
        listener.onQueryProgress(ProgressEvent(None, source(cut(s0=done), cut(s0=4))))
    listener.onQueryProgress(ProgressEvent("files", {"endOffset": {"logOffset": 3}, "latestOffset": None}))
    assert {name: found.messages for name, found in listener.lags.items()} == {"7": 0}
    assert [found.messages for _, found in listener.history["7"]] == [3, 0]


def test_sources_of_one_query_are_summed_and_others_left_out() -> None:
    other = {"endOffset": None, "latestOffset": "17"}
    two = ProgressEvent("q", source(cut(s0=1), cut(s0=4)), other, source(cut(s0=0), cut(s0=4)))
    found = lag_of(two)
    assert found is not None
    assert found.messages == 7
    assert lag_of(ProgressEvent("q", other)) is None
