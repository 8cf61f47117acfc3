"""The stored JSON: Pulsar's names, no field lost, paths that cannot clash."""

from __future__ import annotations

import msgspec
import pytest

from anabranch.errors import InvalidNameError, MetadataError
from anabranch.metadata import records
from anabranch.metadata.layouts import layout_of, with_layout
from anabranch.metadata.records import (
    AssignedRecord,
    ConsumerRecord,
    GarbageRecord,
    IntentRecord,
    StepRecord,
    SubscriptionRecord,
    TopicRecord,
    UnfinishedRecord,
)
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.policies.retention import retention_of

NAME = TopicName.parse("topic://public/default/orders")


def full_record() -> TopicRecord:
    layout = Layout.initial(2, now_ms=5).split(1, [40000], now_ms=7)
    empty = TopicRecord(
        epoch=0,
        next_segment_id=0,
        segments={},
        properties={"team": "blue"},
        auto_scale_policy={"enabled": False, "maxSegments": 3, "splitMsgRateInThreshold": 0.5},
        incarnation=9,
        term=4,
        created_at_ms=3,
        intent=IntentRecord(
            kind="split",
            steps=(StepRecord(parent_ids=(2,), points=(35000,)),),
            first_id=4,
            child_names=("segment://a", "segment://b"),
            child_stores=(0, 3),
            started_at_ms=8,
            term=4,
            reason="by hand",
            automatic=True,
        ),
        garbage=(GarbageRecord(name="segment://x", since_ms=1),),
        history={"lastSplitS": 7.5, "coldSince": {"2": 6.0}},
        deleted=True,
    )
    return with_layout(empty, layout)


def test_a_topic_record_uses_the_names_of_pulsar() -> None:
    data = msgspec.json.decode(records.encode(full_record()))
    assert {"epoch", "nextSegmentId", "segments", "properties", "autoScalePolicy", "hashVersion"} <= set(data)
    assert data["segments"]["3"] == {
        "segmentId": 3,
        "hashRange": {"start": 40000, "end": 65535},
        "state": "ACTIVE",
        "parentIds": [1],
        "childIds": [],
        "createdAtEpoch": 1,
        "sealedAtEpoch": -1,
        "createdAtMs": 7,
        "sealedAtMs": -1,
        "legacyTopicName": None,
        "entryBucketSplits": [],
        "store": 0,
    }


def test_every_field_of_a_topic_record_survives_storage() -> None:
    record = full_record()
    assert records.decode(TopicRecord, records.encode(record)) == record


def test_every_field_of_a_subscription_record_survives_storage() -> None:
    record = SubscriptionRecord(
        type="CHECKPOINT",
        initial_position="latest",
        drained=(1, 2),
        consumers={
            "a/b": ConsumerRecord(generation=3, segments=(AssignedRecord(segment_id=5, shared=True),))
        },
        generation=3,
        term=2,
        created_at_ms=1,
        unfinished=UnfinishedRecord(kind="seek", timestamp_ms=77),
    )
    assert records.decode(SubscriptionRecord, records.encode(record)) == record


def test_a_record_and_its_layout_are_the_same_dag() -> None:
    record = full_record()
    assert with_layout(record, layout_of(record)) == record


@pytest.mark.parametrize("step", ["split", "merge", "rebucket", "prune", "reserve"])
def test_a_new_layout_changes_only_the_dag(step: str) -> None:
    record = full_record()
    layout = layout_of(record)
    after = {
        "split": lambda: layout.split(0, now_ms=9),
        "merge": lambda: layout.merge([2, 3], now_ms=9),
        "rebucket": lambda: layout.rebucket(0, [9], now_ms=9),
        "prune": lambda: layout.prune([1]),
        "reserve": lambda: layout.reserve(2),
    }[step]()
    changed = with_layout(record, after)
    assert layout_of(changed) == after
    for field in TopicRecord.__struct_fields__:
        if field not in ("epoch", "next_segment_id", "segments"):
            assert getattr(changed, field) == getattr(record, field)


def test_fields_of_a_newer_version_are_ignored_and_garbage_is_an_error() -> None:
    data = msgspec.json.decode(records.encode(full_record()))
    data["fromTheFuture"] = {"x": 1}
    assert records.decode(TopicRecord, msgspec.json.encode(data)) == full_record()
    with pytest.raises(MetadataError, match="TopicRecord"):
        records.decode(TopicRecord, b"{")


def test_names_are_encoded_so_that_no_two_share_a_path() -> None:
    nested = TopicName.parse("topic://public/default/orders/subscriptions/s")
    assert records.topic_path(nested) != records.subscription_path(NAME, "s")
    assert records.subscription_path(NAME, "a/b").count("/") == records.subscription_path(NAME, "ab").count(
        "/"
    )
    assert records.subscription_path(NAME, "a/b") != records.subscription_path(NAME, "a%2Fb")
    with pytest.raises(InvalidNameError):
        records.subscription_path(NAME, "")


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (None, (7.0, None)),
        ({}, (7.0, None)),
        ("for long", (7.0, None)),
        ({"retentionTimeInMinutes": 2, "retentionSizeInMB": 3}, (120.0, 3 * 1024 * 1024)),
        ({"retentionTimeInMinutes": -1, "retentionSizeInMB": 0.5}, (None, 512 * 1024)),
        ({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}, (None, None)),
        ({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, (0.0, 0)),
        ({"retentionTimeInMinutes": 2, "retentionSizeInMB": 0}, (120.0, None)),
        ({"retentionSizeInMB": 0}, (7.0, None)),
        ({"retentionSizeInMB": 1}, (7.0, 1024 * 1024)),
    ],
)
def test_the_policy_of_a_namespace_overrides_the_default_retention(policy: object, kept: object) -> None:
    assert retention_of(policy, 7.0) == kept
