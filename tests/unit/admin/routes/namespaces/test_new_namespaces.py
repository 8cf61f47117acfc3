"""The Policies that a namespace is created with: each field is enforced, shown, true here, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import fields

from anabranch.admin.models.namespaces import NamespacePolicies
from anabranch.model.policies.table import POLICIES
from tests.harness.admin import Admin

PATH = "/admin/v2/namespaces/public/other"
QUOTA = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
RATE = {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
DISPATCH = {
    "dispatchThrottlingRateInMsg": 5,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
GRANTS = {"namespace_auth": {"shop": ["produce"]}, "destination_auth": {}, "subscription_auth_roles": {}}

ENFORCED: dict[str, tuple[object, object]] = {
    "auth_policies": (GRANTS, {"namespace_auth": {"shop": ["fly"]}}),
    "subscription_auth_mode": ("Prefix", "X"),
    "properties": ({"colour": "red"}, {"colour": 1}),
    "retention_policies": ({"retentionTimeInMinutes": 5.0}, {"retentionTimeInMinutes": "5"}),
    "message_ttl_in_seconds": (40, -5),
    "backlog_quota_map": ({"destination_storage": QUOTA}, {"destination_storage": {}}),
    "deduplicationEnabled": (False, 3),
    "autoTopicCreationOverride": ({"allowAutoTopicCreation": False}, {"topicType": "partitioned"}),
    "autoSubscriptionCreationOverride": ({"allowAutoSubscriptionCreation": False}, 3),
    "publishMaxMessageRate": ({"standalone": RATE}, {"mars": RATE}),
    "topicDispatchRate": ({"standalone": DISPATCH}, {"standalone": DISPATCH, "mars": DISPATCH}),
    "subscriptionDispatchRate": ({"standalone": DISPATCH}, 3),
    "subscription_types_enabled": (["Shared"], ["Sharing"]),
    "encryption_required": (True, "yes"),
    "max_producers_per_topic": (1, -2),
    "max_consumers_per_topic": (2, "2"),
    "max_consumers_per_subscription": (3, -2),
    "max_unacked_messages_per_consumer": (4, -2),
    "max_unacked_messages_per_subscription": (5, -2),
    "max_subscriptions_per_topic": (6, -2),
    "max_topics_per_namespace": (7, -2),
    "compaction_threshold": (8, -2),
    "schema_compatibility_strategy": ("FORWARD", "SIDEWAYS"),
    "schema_validation_enforced": (True, "yes"),
    "is_allow_auto_update_schema": (False, "no"),
    "schema_auto_update_compatibility_strategy": ("Forward", "Sideways"),
}
"""The fields that brokers act on: a value that is shown again, and one that is refused."""

TRUE_HERE: dict[str, tuple[object, list[object]]] = {
    "replication_clusters": (["standalone"], [["mars"], ["standalone", "mars"], "standalone"]),
    "allowed_clusters": (["standalone"], [["mars"], 7]),
    "bundles": (
        {"numBundles": 64},
        [
            7,
            {"numBundles": "64"},
            {"numBundles": -1},
            {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"]},
        ],
    ),
}
"""The fields that are the same for every namespace: a value that callers may send, and those refused."""

REFUSED: dict[str, object] = {
    "subscription_expiration_time_minutes": 5,
    "scalableTopicAutoScalePolicy": {"enabled": False},
    "clusterSubscribeRate": {"standalone": {"subscribeThrottlingRatePerConsumer": 1}},
    "delayed_delivery_policies": {"active": False},
    "inactive_topic_policies": {"deleteWhileInactive": True},
    "persistence": {"bookkeeperEnsemble": 2},
    "offload_threshold": 100,
    "resource_group_name": "gold",
    "antiAffinityGroup": "apart",
    "replicatorDispatchRate": {"standalone": DISPATCH},
    "entryFilters": {"entryFilterNames": "mine"},
    "topic_rates": {"orders": {"messageTTL": 1}},
}
"""Policies that brokers do not have, or that a call of its own sets."""


def test_each_field_of_the_model_is_in_one_of_these_lists() -> None:
    names = {one.encode_name for one in fields(NamespacePolicies)}
    assert names <= {*ENFORCED, *TRUE_HERE, *REFUSED}
    assert {line.field for line in POLICIES.values() if line.field} <= set(ENFORCED)
    assert len({*ENFORCED, *TRUE_HERE, *REFUSED}) == len(ENFORCED) + len(TRUE_HERE) + len(REFUSED)


@pytest.mark.parametrize(("field", "value"), [(field, good) for field, (good, _) in ENFORCED.items()])
def test_a_policy_that_is_enforced_is_stored_and_shown(admin: Admin, field: str, value: object) -> None:
    assert admin("PUT", PATH, {field: value}).status == 204
    assert admin("GET", PATH).json[field] == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, bad) for field, (_, bad) in ENFORCED.items()),
        *((field, bad) for field, (_, several) in TRUE_HERE.items() for bad in several),
        *REFUSED.items(),
    ],
)
def test_a_policy_that_would_not_hold_is_refused(admin: Admin, field: str, value: object) -> None:
    refused = admin("PUT", PATH, {field: value})
    assert refused.status == 412
    assert refused.json["reason"]
    assert admin("GET", PATH).status == 404


@pytest.mark.parametrize(("field", "value"), [(field, good) for field, (good, _) in TRUE_HERE.items()])
def test_a_field_without_a_choice_is_accepted_and_shown_as_it_is(
    admin: Admin, field: str, value: object
) -> None:
    assert admin("PUT", PATH, {field: value}).status == 204
    shown = admin("GET", PATH).json
    assert shown["replication_clusters"] == ["standalone"]
    assert shown["bundles"] == {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}


JAVA = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": ["standalone"],
    "allowed_clusters": [],
    "bundles": {"numBundles": 4},
    "backlog_quota_map": {"destination_storage": QUOTA},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "message_ttl_in_seconds": 40,
    "persistence": None,
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "schema_auto_update_compatibility_strategy": "Full",
    "subscription_types_enabled": [],
    "properties": {},
}
GO = {
    "auth_policies": {"namespace_auth": None, "destination_auth": None, "subscription_auth_roles": None},
    "bundles": {"boundaries": None, "numBundles": 16},
    "replication_clusters": None,
    "backlog_quota_map": None,
    "message_ttl_in_seconds": 40,
    "deleted": False,
    "encryption_required": False,
    "offload_threshold": 0,
    "antiAffinityGroup": "",
    "schema_validation_enforced": False,
    "schema_auto_update_compatibility_strategy": "",
    "schema_compatibility_strategy": "",
    "subscription_auth_mode": "",
    "is_allow_auto_update_schema": None,
}


@pytest.mark.parametrize("body", [JAVA, GO], ids=["java", "go"])
def test_the_bodies_of_other_admin_clients_are_accepted(admin: Admin, body: dict[str, Any]) -> None:
    """They send every field, most of them empty."""
    assert admin("PUT", PATH, body).status == 204
    shown = admin("GET", PATH).json
    assert shown["message_ttl_in_seconds"] == 40
    assert "offload_threshold" not in shown
