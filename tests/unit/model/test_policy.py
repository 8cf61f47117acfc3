from __future__ import annotations

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.model.scaling.policy import (
    BROKER_KEYS,
    FIELDS,
    AutoScalePolicy,
    Override,
    check_override,
    check_policy,
    coerce,
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


def test_the_topic_comes_before_the_namespace_before_the_broker() -> None:
    namespace = {"maxSegments": 8, "minSegments": 2}
    topic = {"maxSegments": 16, "enabled": False}
    resolved = resolve(BROKER, namespace, topic)
    assert (resolved.max_segments, resolved.min_segments, resolved.enabled) == (16, 2, False)
    assert resolved.split_cooldown_seconds == BROKER.split_cooldown_seconds
    assert resolve(BROKER) == BROKER


def test_layers_that_do_not_fit_together_are_refused() -> None:
    namespace, topic = {"minSegments": 10}, {"maxSegments": 5}
    assert resolve(BROKER, namespace)
    assert resolve(BROKER, None, topic)
    with pytest.raises(InvalidConfigurationError, match="maxSegments"):
        resolve(BROKER, namespace, topic)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ({"minSegments": 0}, "minSegments"),
        ({"maxSegments": 65537}, "maxSegments"),
        ({"maxDagDepth": -1}, "maxDagDepth"),
        ({"splitCooldownSeconds": -1}, "splitCooldownSeconds"),
        ({"mergeWindowSeconds": float("inf")}, "mergeWindowSeconds"),
        ({"mergeCooldownSeconds": float("nan")}, "mergeCooldownSeconds"),
        ({"splitMsgRateInThreshold": 0}, "splitMsgRateInThreshold"),
        ({"splitBytesRateOutThreshold": float("nan")}, "splitBytesRateOutThreshold"),
        ({"mergeMsgRateInThreshold": 10_000}, "mergeMsgRateInThreshold"),
        ({"mergeBytesRateInThreshold": -1}, "mergeBytesRateInThreshold"),
        ({"entryBucketMaxPerSegment": 0}, "entryBucketMaxPerSegment"),
        ({"entryBucketMaxPerSegment": 1025}, "entryBucketMaxPerSegment"),
    ],
)
def test_an_unusable_policy_names_the_field(override: Override, says: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=says):
        resolve(BROKER, override)


def test_a_merge_threshold_of_zero_is_allowed() -> None:
    assert resolve(BROKER, {"mergeMsgRateInThreshold": 0})


def test_an_override_keeps_what_is_set_and_nothing_more() -> None:
    override = check_override({"maxSegments": 8.0, "splitCooldownSeconds": 5, "enabled": None})
    assert override == {"maxSegments": 8, "splitCooldownSeconds": 5.0}
    assert check_override(override) == override


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
        check_override(data)


def test_broker_settings_have_the_names_of_the_proposal() -> None:
    assert BROKER_KEYS["scalableTopicAutoScaleEnabled"] == "enabled"
    assert BROKER_KEYS["scalableTopicSplitMsgRateInThreshold"] == "split_msg_rate_in_threshold"
    assert BROKER_KEYS["scalableTopicEntryBucketMaxPerSegment"] == "entry_bucket_max_per_segment"
    assert sorted(BROKER_KEYS.values()) == sorted(FIELDS)
    assert coerce("max_segments", 3) == 3
