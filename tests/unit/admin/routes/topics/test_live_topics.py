"""`non-persistent://` topics over HTTP, with Pulsar's paths."""

from __future__ import annotations

import pytest

from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import CLASSIC, Admin
from tests.harness.wire import WireClient, values_of

NAMESPACE = "/admin/v2/non-persistent/public/default"
LIVE = f"{NAMESPACE}/ticks"
NAME = "non-persistent://public/default/ticks"


async def use(admin: Admin, topic: str = NAME) -> WireClient:
    """A client with a consumer of one permit that has published three messages."""
    client = await admin.brokers.connect()
    await client.subscribe(topic, permits=1)
    await client.producer(topic)
    await client.publish_all([b"a", b"b", b"c"])
    assert values_of(await client.deliveries(1)) == [b"a"]
    return client


def test_a_live_topic_is_created_listed_and_deleted(admin: Admin) -> None:
    assert admin("PUT", LIVE).status == 204
    assert admin("PUT", LIVE).status == 409
    assert admin("PUT", CLASSIC).status == 204
    assert admin("GET", NAMESPACE).json == admin("GET", f"{NAMESPACE}/0x00000000_0xffffffff").json == [NAME]
    assert admin("GET", LIVE).status == 404, "it is not a bundle"
    topics = "/admin/v2/namespaces/public/default/topics"
    assert admin("GET", topics).json == ["persistent://public/default/classic"]
    assert admin("GET", f"{topics}?mode=NON_PERSISTENT").json == [NAME]
    assert len(admin("GET", f"{topics}?mode=ALL").json) == 2
    assert admin("GET", f"{topics}?mode=SOME").status == 412
    assert admin("DELETE", LIVE).status == 204
    assert admin("DELETE", LIVE).status == 404
    assert admin("GET", NAMESPACE).json == []
    assert admin("GET", f"{LIVE}/stats").status == 404


def test_stats_count_what_was_dropped(admin: Admin) -> None:
    admin.loop.run(use(admin))
    found = admin("GET", f"{LIVE}/stats").json
    assert (found["msgInCounter"], found["msgOutCounter"], found["msgDropCounter"]) == (3, 1, 2)
    assert found["subscriptions"]["sub"]["msgDropCounter"] == 2
    assert found["msgDropRate"] > 0
    assert found["storageSize"] == found["subscriptions"]["sub"]["msgBacklog"] == 0
    metrics = admin("GET", "/metrics/").body.decode()
    assert f'topic="{NAME}"}} 2' in next(
        line for line in metrics.splitlines() if line.startswith("anabranch_messages_dropped_total")
    )
    internal = admin("GET", f"{LIVE}/internalStats").json
    assert (internal["entriesAddedCounter"], internal["numberOfEntries"]) == (3, 0)


def test_a_topic_in_use_is_deleted_only_by_force(admin: Admin) -> None:
    client = admin.loop.run(use(admin))
    assert admin("DELETE", LIVE).status == 412
    assert admin("DELETE", f"{LIVE}?force=true").status == 204
    admin.loop.run(client.expect(pb.CommandCloseConsumer))
    assert admin("GET", NAMESPACE).json == []


def test_partitions_of_a_live_topic(admin: Admin) -> None:
    assert admin("PUT", f"{LIVE}/partitions", 3).status == 204
    assert admin("GET", f"{LIVE}/partitions").json["partitions"] == 3
    assert admin("GET", f"{NAMESPACE}/partitioned").json == [NAME]
    assert admin("GET", NAMESPACE).json == [f"{NAME}-partition-{n}" for n in range(3)]
    assert admin("POST", f"{LIVE}/partitions", 4).status == 204
    admin.loop.run(use(admin, f"{NAME}-partition-3"))
    found = admin("GET", f"{LIVE}/partitioned-stats").json
    assert (found["msgDropCounter"], len(found["partitions"])) == (2, 4)
    assert admin("GET", f"{LIVE}-partition-3/stats").json["msgDropCounter"] == 2
    assert admin("DELETE", f"{LIVE}/partitions?force=true").status == 204
    assert admin("GET", NAMESPACE).json == []


def test_subscriptions_are_listed_made_and_deleted(admin: Admin) -> None:
    admin.loop.run(use(admin))
    assert admin("PUT", f"{LIVE}/subscription/later").status == 204
    assert admin("GET", f"{LIVE}/subscriptions").json == ["later", "sub"]
    assert admin("DELETE", f"{LIVE}/subscription/sub").status == 412
    assert admin("DELETE", f"{LIVE}/subscription/later").status == 204
    assert admin("GET", f"{LIVE}/subscriptions").json == ["sub"]


def test_unloading_disconnects_the_clients(admin: Admin) -> None:
    client = admin.loop.run(use(admin))
    assert admin("PUT", f"{LIVE}/unload").status == 204
    admin.loop.run(client.expect(pb.CommandCloseProducer))
    assert admin("GET", f"{LIVE}/subscriptions").json == []


@pytest.mark.parametrize("path", ["unload", "0x00000000_0xffffffff/unload"])
def test_unloading_a_namespace_disconnects_the_clients_of_all_its_topics(admin: Admin, path: str) -> None:
    live, stored = admin.loop.run(use(admin)), admin.loop.run(use(admin, "persistent://public/default/x"))
    namespace = "/admin/v2/namespaces/public/default"
    assert admin("PUT", "/admin/v2/scalable/public/default/orders").status == 204
    assert admin("PUT", f"{namespace}/0x00000000_0x7fffffff/unload").status == 404
    assert admin("GET", f"{namespace}/bundles").json["numBundles"] == 1
    assert not live.has(pb.CommandCloseProducer)
    assert admin("PUT", f"{namespace}/{path}").status == 204
    for client in (live, stored):
        admin.loop.run(client.expect(pb.CommandCloseProducer))
    assert admin("PUT", "/admin/v2/namespaces/public/none/unload").status == 404


def test_a_lookup_over_http_finds_a_live_topic(admin: Admin) -> None:
    found = admin("GET", "/lookup/v2/topic/non-persistent/public/default/new")
    assert found.json["brokerUrl"].startswith("pulsar://")
    assert admin("GET", f"{NAMESPACE}/new/partitions?checkAllowAutoCreation=true").json["partitions"] == 0
    assert admin("GET", f"{NAMESPACE}/new/partitions").status == 404


@pytest.mark.parametrize("path", ["terminate", "compaction", "lastMessageId", "subscription/s/skip_all"])
def test_calls_about_stored_messages_do_not_exist(admin: Admin, path: str) -> None:
    admin("PUT", LIVE)
    assert admin("POST", f"{LIVE}/{path}").status in (404, 405)


def test_limits_of_topics_count_live_ones(admin: Admin) -> None:
    admin("POST", "/admin/v2/namespaces/public/default/maxTopicsPerNamespace", 1)
    assert admin("PUT", LIVE).status == 204
    assert admin("PUT", "/admin/v2/persistent/public/default/ticks").status == 412


def test_a_namespace_with_live_topics_is_deleted_only_by_force(admin: Admin) -> None:
    admin("PUT", "/admin/v2/namespaces/public/other")
    assert admin("PUT", "/admin/v2/non-persistent/public/other/ticks").status == 204
    assert admin("DELETE", "/admin/v2/namespaces/public/other").status == 409
    assert admin("DELETE", "/admin/v2/namespaces/public/other?force=true").status == 204
