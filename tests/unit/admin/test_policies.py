"""Policies in the admin API: Pulsar's paths and JSON, each enforced or refused with a reason."""

from __future__ import annotations

import pytest

from anabranch.model.policies.table import POLICIES, REFUSED
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPICS = {
    "persistent": "/admin/v2/persistent/public/default/orders",
    "scalable": "/admin/v2/scalable/public/default/orders",
}
QUOTA = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
AGE = {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}

# Name at namespaces, name at topics, field in the Policies object, a good value, a bad one.
VALUES = [
    (
        "retention",
        "retention",
        "retention_policies",
        {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1},
        5,
    ),
    ("messageTTL", "messageTTL", "message_ttl_in_seconds", 30, -1),
    ("deduplication", "deduplicationEnabled", "deduplicationEnabled", False, 1),
    ("autoTopicCreation", "", "autoTopicCreationOverride", {"allowAutoTopicCreation": False}, True),
    (
        "autoSubscriptionCreation",
        "autoSubscriptionCreation",
        "autoSubscriptionCreationOverride",
        {"allowAutoSubscriptionCreation": False},
        {"allowAutoSubscriptionCreation": "no"},
    ),
    (
        "subscriptionTypesEnabled",
        "subscriptionTypesEnabled",
        "subscription_types_enabled",
        ["Shared", "Failover"],
        ["Sharing"],
    ),
    ("encryptionRequired", "", "encryption_required", True, 0),
    (
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesOnConsumer",
        "max_unacked_messages_per_consumer",
        9,
        -1,
    ),
    (
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        "max_unacked_messages_per_subscription",
        8,
        "8",
    ),
    ("maxProducersPerTopic", "maxProducers", "max_producers_per_topic", 2, -1),
    ("maxConsumersPerTopic", "maxConsumers", "max_consumers_per_topic", 2, -1),
]
ON_TOPICS = [(name, good, bad) for _, name, _, good, bad in VALUES if name]


@pytest.fixture(params=TOPICS)
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    path = TOPICS[request.param]
    assert admin("PUT", path).status == 204
    return path


@pytest.mark.parametrize(("name", "field", "good", "bad"), [(n, f, g, b) for n, _, f, g, b in VALUES])
def test_a_policy_of_a_namespace_is_set_shown_refused_and_removed(
    admin: Admin, name: str, field: str, good: object, bad: object
) -> None:
    path = f"{NAMESPACE}/{name}"
    assert admin("GET", path).status == 204
    assert admin("POST", path, good).status == 204
    assert admin("GET", path).json == good
    assert admin("GET", NAMESPACE).json[field] == good
    assert admin("POST", path, bad).status == 412
    assert admin("GET", path).json == good
    assert admin("DELETE", path).status == 204
    assert admin("GET", path).status == 204
    assert admin("PUT", path, good).status == 204


@pytest.mark.parametrize(("name", "good", "bad"), ON_TOPICS)
def test_a_policy_of_a_topic_is_set_shown_refused_and_removed(
    admin: Admin, topic: str, name: str, good: object, bad: object
) -> None:
    path = f"{topic}/{name}"
    assert admin("GET", path).status == 204
    assert admin("POST", path, good).status == 204
    assert admin("GET", path).json == good
    assert admin("POST", path, bad).status == 412
    assert admin("GET", path).json == good
    assert admin("DELETE", path).status == 204
    assert admin("GET", path).status == 204


def test_the_time_to_live_of_a_topic_may_come_as_a_parameter(admin: Admin, topic: str) -> None:
    assert admin("POST", f"{topic}/messageTTL?messageTTL=17").status == 204
    assert admin("GET", f"{topic}/messageTTL").json == 17
    assert admin("POST", f"{NAMESPACE}/messageTTL", 30).status == 204
    assert admin("GET", f"{topic}/messageTTL?applied=true").json == 17
    assert admin("DELETE", f"{topic}/messageTTL").status == 204
    assert admin("GET", f"{topic}/messageTTL?applied=true").json == 30


@pytest.mark.parametrize("place", ["namespace", "topic"])
def test_backlog_quotas_are_set_and_removed_by_their_types(admin: Admin, topic: str, place: str) -> None:
    path = NAMESPACE if place == "namespace" else topic
    assert admin("GET", f"{path}/backlogQuotaMap").json == {}
    assert admin("POST", f"{path}/backlogQuota", QUOTA).status == 204
    assert admin("POST", f"{path}/backlogQuota?backlogQuotaType=message_age", AGE).status == 204
    both = {"destination_storage": QUOTA, "message_age": AGE}
    assert admin("GET", f"{path}/backlogQuotaMap").json == both
    assert admin("DELETE", f"{path}/backlogQuota?backlogQuotaType=destination_storage").status == 204
    assert admin("GET", f"{path}/backlogQuotaMap").json == {"message_age": AGE}
    assert admin("DELETE", f"{path}/backlogQuota?backlogQuotaType=message_age").status == 204
    assert admin("GET", f"{path}/backlogQuotaMap").json == {}


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", {"limitSize": 10}),
        ("", {"limitSize": 10, "policy": "wait"}),
        ("", {"limitTime": 10, "policy": "producer_exception"}),
        ("", {"limitSize": "10", "policy": "producer_exception"}),
        ("", {"limitSize": 10, "policy": "producer_exception", "other": 1}),
        ("", 10),
        ("?backlogQuotaType=message_age", QUOTA | {"limitTime": None}),
        ("?backlogQuotaType=other", QUOTA),
    ],
)
def test_a_backlog_quota_that_cannot_be_understood_is_refused(admin: Admin, query: str, body: object) -> None:
    assert admin("POST", f"{NAMESPACE}/backlogQuota{query}", body).status == 412
    assert admin("GET", f"{NAMESPACE}/backlogQuotaMap").json == {}


@pytest.mark.parametrize("name", sorted(set(REFUSED) - {"compaction"}))
def test_a_policy_that_brokers_do_not_have_is_refused_with_the_reason(
    admin: Admin, topic: str, name: str
) -> None:
    for path in (NAMESPACE, topic):
        for method in ("GET", "POST", "PUT", "DELETE"):
            refused = admin(method, f"{path}/{name}", {})
            assert refused.status == 405
            assert REFUSED[name] in refused.json["reason"]


def test_a_policy_that_pulsar_does_not_have_either_is_not_found(admin: Admin, topic: str) -> None:
    for path in (NAMESPACE, topic):
        refused = admin("POST", f"{path}/colour", "red")
        assert refused.status == 404
        assert "messageTTL" in refused.json["reason"]


def test_a_scalable_topic_has_no_threshold_of_compaction(admin: Admin) -> None:
    for path in TOPICS.values():
        assert admin("PUT", path.replace("orders", path.split("/")[3])).status == 204
    classic, scalable = (path.replace("orders", path.split("/")[3]) for path in TOPICS.values())
    assert admin("POST", f"{classic}/compactionThreshold", 1000).status == 204
    assert admin("GET", f"{classic}/compactionThreshold").json == 1000
    refused = admin("POST", f"{scalable}/compactionThreshold", 1000)
    assert refused.status == 405
    assert "persistent://" in refused.json["reason"]


def test_policies_of_a_topic_that_does_not_exist_are_not_found(admin: Admin) -> None:
    for path in TOPICS.values():
        assert admin("POST", f"{path}/messageTTL", 5).status == 404


def test_a_namespace_is_created_with_policies_that_hold(admin: Admin) -> None:
    path = "/admin/v2/namespaces/public/other"
    # As the Java admin client sends it: every field, most of them empty.
    body = {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": ["standalone"],
        "bundles": {"numBundles": 4},
        "backlog_quota_map": {"destination_storage": QUOTA},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "message_ttl_in_seconds": 40,
        "persistence": None,
        "deleted": False,
        "encryption_required": False,
        "offload_threshold": -1,
        "schema_compatibility_strategy": "UNDEFINED",
    }
    assert admin("PUT", path, body).status == 204
    shown = admin("GET", path).json
    assert shown["message_ttl_in_seconds"] == 40
    assert shown["backlog_quota_map"] == {"destination_storage": QUOTA}
    assert "offload_threshold" not in shown


@pytest.mark.parametrize(
    "policies",
    [
        {"message_ttl_in_seconds": -5},
        {"persistence": {"bookkeeperEnsemble": 2}},
        {"offload_threshold": 100},
        {"retention_policies": {"retentionTimeInMinutes": "1"}},
        {"backlog_quota_map": {"destination_storage": {}}},
        {"topicDispatchRate": 3},
        {"topic_rates": {"orders": {"messageTTL": 1}}},
    ],
)
def test_a_namespace_cannot_be_created_with_policies_that_would_not_hold(
    admin: Admin, policies: dict[str, object]
) -> None:
    path = "/admin/v2/namespaces/public/other"
    assert admin("PUT", path, policies).status == 412
    assert admin("GET", path).status == 404


async def test_a_restart_keeps_all_policies(brokers: Brokers) -> None:
    admin = Admin(brokers)
    topic = TOPICS["persistent"]
    assert (await admin.ask("PUT", topic)).status == 204
    await admin.ask("POST", f"{NAMESPACE}/messageTTL", 30)
    await admin.ask("POST", f"{topic}/backlogQuota", QUOTA)
    await brokers.restart()
    admin.use(brokers)
    assert (await admin.ask("GET", f"{NAMESPACE}/messageTTL")).json == 30
    assert (await admin.ask("GET", f"{topic}/backlogQuotaMap")).json == {"destination_storage": QUOTA}


def test_every_policy_has_an_example_here() -> None:
    shown = {name for name, *_ in VALUES} | {"backlogQuotaMap", "compactionThreshold", "maxMessageSize"}
    others = {name for name in POLICIES if name.endswith("Rate") or name.startswith("max")}
    assert set(POLICIES) <= shown | others
