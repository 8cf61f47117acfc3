"""Policies in the admin API: Pulsar's paths and JSON, each enforced or refused with a reason."""

from __future__ import annotations

import pytest

from anabranch.model.policies.table import POLICIES, REFUSED
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import error_of

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


def test_a_policy_that_could_not_be_shown_is_refused(admin: Admin) -> None:
    given = {"allowAutoTopicCreation": True, "defaultNumPartitions": "3"}
    assert admin("POST", f"{NAMESPACE}/autoTopicCreation", given).status == 412
    assert admin("GET", NAMESPACE).status == 200


def test_whole_limits_of_retention_are_written_as_whole_numbers(admin: Admin) -> None:
    assert admin("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 60}).status == 204
    assert b'"retention_policies":{"retentionTimeInMinutes":60}' in admin("GET", NAMESPACE).body


@pytest.mark.parametrize("unknown", [{"retentionTime": 5}, {"retentionTimeInMinutes": 5, "x": None}])
def test_retention_with_an_unknown_field_is_refused(admin: Admin, unknown: dict[str, object]) -> None:
    assert admin("POST", f"{NAMESPACE}/retention", unknown).status == 412
    assert admin("GET", f"{NAMESPACE}/retention").status == 204


def test_a_limit_of_null_is_none(admin: Admin) -> None:
    given = {"retentionTimeInMinutes": 5, "retentionSizeInMB": None}
    assert admin("POST", f"{NAMESPACE}/retention", given).status == 204
    assert admin("GET", f"{NAMESPACE}/retention").json == {"retentionTimeInMinutes": 5}


def test_every_policy_has_an_example_here() -> None:
    shown = {name for name, *_ in VALUES} | {"backlogQuotaMap", "compactionThreshold", "maxMessageSize"}
    others = {name for name in POLICIES if name.endswith("Rate") or name.startswith("max")}
    assert set(POLICIES) <= shown | others


PARTITIONED = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
CREATION = "/admin/v2/namespaces/public/default/autoTopicCreation"


@pytest.mark.parametrize("scheme", ["persistent", "non-persistent"])
def test_a_namespace_gives_new_topics_partitions(admin: Admin, scheme: str) -> None:
    assert admin("POST", CREATION, PARTITIONED).status == 204
    first, second = (f"{scheme}://public/default/{name}" for name in ("first", "second"))

    async def use() -> None:
        client = await admin.brokers.connect()
        found = await client.request(pb.CommandPartitionedTopicMetadata(topic=first, request_id=0))
        assert found.partitions == 3
        assert isinstance(await client.producer(f"{first}-partition-2"), pb.CommandProducerSuccess)
        assert error_of(await client.producer(second, producer_id=2)) == pb.NotAllowedError
        asked = pb.CommandPartitionedTopicMetadata(
            topic=f"{scheme}://public/default/none", metadata_auto_creation_enabled=False, request_id=0
        )
        assert (await client.request(asked)).error == pb.TopicNotFound

    admin.loop.run(use())
    lists = f"/admin/v2/{scheme}/public/default"
    assert admin("GET", f"{lists}/partitioned").json == [first, second]
    asked = admin("GET", f"{lists}/third/partitions?checkAllowAutoCreation=true")
    assert asked.json["partitions"] == 3


@pytest.mark.parametrize(
    "given", [{"topicType": "partitioned"}, {"topicType": "other"}, {"defaultNumPartitions": 0}]
)
def test_a_malformed_rule_for_new_topics_is_refused(admin: Admin, given: dict[str, object]) -> None:
    rule = {"allowAutoTopicCreation": True, "topicType": "partitioned", **given}
    assert admin("POST", CREATION, rule).status == 412
