from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.model.policy import (
    BROKER_KEYS,
    FIELDS,
    AutoScaleOverride,
    AutoScalePolicy,
    check_policy,
    coerce,
    override_from_json,
    resolve,
    to_json,
)

BROKER = AutoScalePolicy()


def test_the_defaults_are_those_of_the_proposal() -> None:
    assert check_policy(BROKER) == ()
    assert to_json(BROKER) == {
        "enabled": True,
        "maxSegments": 64,
        "minSegments": 1,
        "maxDagDepth": 10,
        "splitCooldownSeconds": 60,
        "mergeCooldownSeconds": 300,
        "mergeWindowSeconds": 300,
        "rebucketCooldownSeconds": 60,
        "splitMsgRateInThreshold": 10_000,
        "splitBytesRateInThreshold": 50_000_000,
        "splitMsgRateOutThreshold": 50_000,
        "splitBytesRateOutThreshold": 250_000_000,
        "mergeMsgRateInThreshold": 1_000,
        "mergeBytesRateInThreshold": 5_000_000,
        "mergeMsgRateOutThreshold": 5_000,
        "mergeBytesRateOutThreshold": 25_000_000,
        "splitVsRebucketMinMsgRateInThreshold": 1_000,
        "entryBucketMaxPerSegment": 1024,
        "loadStaleSeconds": 120,
    }


def test_an_override_has_every_field_of_the_policy() -> None:
    assert to_json(AutoScaleOverride()) == {}
    for name in FIELDS:
        assert getattr(AutoScaleOverride(), name) is None


def test_the_topic_comes_before_the_namespace_before_the_broker() -> None:
    namespace = AutoScaleOverride(max_segments=8, min_segments=2)
    topic = AutoScaleOverride(max_segments=16, enabled=False)
    resolved = resolve(BROKER, namespace, topic)
    assert (resolved.max_segments, resolved.min_segments, resolved.enabled) == (16, 2, False)
    assert resolved.split_cooldown_seconds == BROKER.split_cooldown_seconds
    assert resolve(BROKER) == BROKER


def test_layers_that_do_not_fit_together_are_refused() -> None:
    namespace, topic = AutoScaleOverride(min_segments=10), AutoScaleOverride(max_segments=5)
    assert resolve(BROKER, namespace)
    assert resolve(BROKER, None, topic)
    with pytest.raises(InvalidConfigurationError, match="maxSegments"):
        resolve(BROKER, namespace, topic)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (AutoScaleOverride(min_segments=0), "minSegments"),
        (AutoScaleOverride(max_segments=65537), "maxSegments"),
        (AutoScaleOverride(max_dag_depth=-1), "maxDagDepth"),
        (AutoScaleOverride(split_cooldown_seconds=-1), "splitCooldownSeconds"),
        (AutoScaleOverride(merge_window_seconds=float("inf")), "mergeWindowSeconds"),
        (AutoScaleOverride(merge_cooldown_seconds=float("nan")), "mergeCooldownSeconds"),
        (AutoScaleOverride(split_msg_rate_in_threshold=0), "splitMsgRateInThreshold"),
        (AutoScaleOverride(split_bytes_rate_out_threshold=float("nan")), "splitBytesRateOutThreshold"),
        (AutoScaleOverride(merge_msg_rate_in_threshold=10_000), "mergeMsgRateInThreshold"),
        (AutoScaleOverride(merge_bytes_rate_in_threshold=-1), "mergeBytesRateInThreshold"),
        (AutoScaleOverride(entry_bucket_max_per_segment=0), "entryBucketMaxPerSegment"),
        (AutoScaleOverride(entry_bucket_max_per_segment=1025), "entryBucketMaxPerSegment"),
    ],
)
def test_an_unusable_policy_names_the_field(override: AutoScaleOverride, says: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=says):
        resolve(BROKER, override)


def test_a_merge_threshold_of_zero_is_allowed() -> None:
    assert resolve(BROKER, AutoScaleOverride(merge_msg_rate_in_threshold=0))


def test_json_round_trip_keeps_what_is_set_and_nothing_more() -> None:
    override = override_from_json({"maxSegments": 8.0, "splitCooldownSeconds": 5, "enabled": None})
    assert override == AutoScaleOverride(max_segments=8, split_cooldown_seconds=5.0)
    assert override_from_json(to_json(override)) == override


@pytest.mark.parametrize(
    "data",
    [
        {"maxSegment": 8},
        {"max_segments": 8},
        {"enabled": 1},
        {"maxSegments": True},
        {"maxSegments": 8.5},
        {"maxSegments": "8"},
        {"splitCooldownSeconds": "x"},
        {"splitCooldownSeconds": False},
    ],
)
def test_json_of_a_wrong_name_or_type_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigurationError):
        override_from_json(data)


def test_broker_settings_have_the_names_of_the_proposal() -> None:
    assert BROKER_KEYS["scalableTopicAutoScaleEnabled"] == "enabled"
    assert BROKER_KEYS["scalableTopicSplitMsgRateInThreshold"] == "split_msg_rate_in_threshold"
    assert BROKER_KEYS["scalableTopicEntryBucketMaxPerSegment"] == "entry_bucket_max_per_segment"
    assert sorted(BROKER_KEYS.values()) == sorted(FIELDS)
    assert coerce("max_segments", 3) == 3
