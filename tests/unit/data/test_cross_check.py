"""Records of topics against the logs of stores, as values."""

from __future__ import annotations

import msgspec
import pytest

from anabranch.data.cross_check import LogView, cross_check
from anabranch.data.lost_stores import find_lost
from anabranch.ledger.findings import Finding, StoreReport
from anabranch.metadata import records
from anabranch.metadata.layouts import with_layout
from anabranch.metadata.records import (
    ClassicTopicRecord,
    GarbageRecord,
    IntentRecord,
    LineageRecord,
    Record,
    SubscriptionRecord,
    TopicRecord,
    UnfinishedRecord,
)
from anabranch.metadata.sqlite.record_log_format import LoggedChange, RecordState
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName

NAME = TopicName.parse("topic://public/default/orders")
CLASSIC = TopicName.parse("persistent://public/default/parts")
LAYOUT = Layout.initial(1, now_ms=0, bucket_budget=1).split(0, (0x8000,), now_ms=1)
TOPIC = with_layout(TopicRecord(epoch=0, next_segment_id=0, segments={}), LAYOUT)
STREAM = SubscriptionRecord(type="STREAM", initial_position="earliest")
INTENT = IntentRecord(
    kind="split", steps=(), first_id=3, child_names=("child",), child_stores=(0,), started_at_ms=0, term=1
)


def state_of(topic: TopicRecord = TOPIC, subscription: SubscriptionRecord = STREAM) -> RecordState:
    state = RecordState()
    kept: dict[str, Record] = {
        records.topic_path(NAME): topic,
        records.subscription_path(NAME, "s"): subscription,
        records.classic_path(CLASSIC): ClassicTopicRecord(partitions=2),
        records.lineage_path(NAME): LineageRecord(garbage=(GarbageRecord(name="old", since_ms=0),)),
    }
    for path, record in kept.items():
        state.apply(LoggedChange(path, 1, 0, records.encode(record)))
    return state


def log_name(id_: int) -> str:
    return str(NAME.segment_name(LAYOUT.segments[id_].range, id_))


def stored(**changes: LogView | None) -> dict[int, dict[str, LogView]]:
    """The logs of a topic that is as it should be, with changes by the id of a segment."""
    whole: dict[str, LogView | None] = {
        log_name(id_): LogView(not LAYOUT.segments[id_].active, frozenset({"s"})) for id_ in LAYOUT.segments
    }
    whole |= {log_name(int(key[1:])): view for key, view in changes.items()}
    whole |= {"old": LogView(False, frozenset()), str(CLASSIC.partition_name(1)): LogView(False, frozenset())}
    return {0: {name: view for name, view in whole.items() if view is not None}}


def test_a_directory_that_is_whole_has_no_disagreement() -> None:
    assert cross_check(state_of(), stored()) == []
    assert cross_check(state_of(), {}) == [], "a store that cannot be read says nothing"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"s1": None}, "no log of segment 1"),
        ({"s0": None}, "no log of segment 0"),
        ({"s2": LogView(True, frozenset({"s"}))}, "active segment 2 is sealed"),
        ({"s0": LogView(False, frozenset({"s"}))}, "sealed segment 0 is not sealed"),
        ({"s1": LogView(False, frozenset())}, "segment 1 lacks the subscriptions s"),
    ],
)
def test_each_difference_is_one_sentence(changes: dict[str, LogView | None], found: str) -> None:
    (sentence,) = cross_check(state_of(), stored(**changes))
    assert found in sentence


def test_an_unfinished_change_explains_a_difference() -> None:
    busy = msgspec.structs.replace(TOPIC, intent=INTENT)
    assert cross_check(state_of(busy), stored(s1=None)) == []
    unfinished = msgspec.structs.replace(STREAM, unfinished=UnfinishedRecord(kind="create"))
    logs = stored(s1=LogView(False, frozenset()))
    assert cross_check(state_of(subscription=unfinished), logs) == []


def test_a_log_that_no_record_names_is_a_stray() -> None:
    logs = stored()
    logs[0]["stray"] = LogView(False, frozenset())
    assert cross_check(state_of(), logs) == ["store 0 has the log stray, which no topic names"]


def test_a_store_is_lost_if_its_files_are_gone_or_those_of_another() -> None:
    unreadable = StoreReport(0, 0, 0, (Finding("stores/3", "the store cannot be opened"),))
    found = {0: StoreReport(7, 1, 1, ()), 1: StoreReport(9, 0, 0, ()), 3: unreadable}
    assert find_lost({0: 7, 1: 8, 2: 5, 3: 6, 4: 0}, found) == [1, 2]
