"""Backlogs and subscriptions of all topics of a namespace over HTTP, and the figures of all topics."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers

SPACE = "/admin/v2/namespaces/public/default"
PARTS = "/admin/v2/persistent/public/default/parts"
PLAIN = "/admin/v2/persistent/public/default/plain"
SCALABLE = "/admin/v2/scalable/public/default/orders"
NAMES = (
    "persistent://public/default/plain",
    "persistent://public/default/parts",
    "topic://public/default/orders",
)
SHARED = pb.CommandSubscribe.Shared


@pytest.fixture
async def filled(brokers: Brokers) -> Admin:
    """The admin API of brokers with three kinds of topics, two subscriptions and two messages in each."""
    admin = Admin(brokers)
    assert (await admin.ask("PUT", PLAIN)).status == 204
    assert (await admin.ask("PUT", f"{PARTS}/partitions", 2)).status == 204
    assert (await admin.ask("PUT", f"{SCALABLE}?numInitialSegments=2")).status == 204
    for subscription in ("one", "two"):
        for path in (PLAIN, PARTS):
            assert (await admin.ask("PUT", f"{path}/subscription/{subscription}", "earliest")).status == 204
        assert (await admin.ask("PUT", f"{SCALABLE}/subscriptions/{subscription}")).status == 204
    async with brokers.client() as client:
        for name in NAMES:
            producer = await client.create_producer(name)
            await producer.send(b"a", key="a")
            await producer.send(b"b", key="b")
    return admin


async def backlogs(admin: Admin) -> dict[str, list[int]]:
    """By subscription its backlog in each topic."""
    found: dict[str, list[int]] = {}
    for path, field in ((PLAIN, "msgBacklog"), (PARTS, "msgBacklog"), (SCALABLE, "backlog")):
        shown: dict[str, Any] = (await admin.ask("GET", f"{path}/stats")).json["subscriptions"]
        for name, figures in shown.items():
            found.setdefault(name, []).append(figures[field])
    return found


@pytest.mark.brokers(count=2)
async def test_the_backlog_of_one_subscription_or_of_all_is_cleared(filled: Admin) -> None:
    assert await backlogs(filled) == {"one": [2, 2, 2], "two": [2, 2, 2]}
    assert (await filled.ask("POST", f"{SPACE}/clearBacklog/one")).status == 204
    assert await backlogs(filled) == {"one": [0, 0, 0], "two": [2, 2, 2]}
    assert (await filled.ask("POST", f"{SPACE}/clearBacklog")).status == 204
    assert await backlogs(filled) == {"one": [0, 0, 0], "two": [0, 0, 0]}


@pytest.mark.brokers(count=2)
async def test_a_subscription_is_deleted_from_all_topics(filled: Admin) -> None:
    assert (await filled.ask("POST", f"{SPACE}/unsubscribe/one")).status == 204
    assert await backlogs(filled) == {"two": [2, 2, 2]}


@pytest.mark.parametrize("name", ["persistent://public/default/plain", "topic://public/default/orders"])
async def test_a_subscription_with_consumers_stays_on_all_topics(filled: Admin, name: str) -> None:
    async with filled.brokers.client() as client:
        await client.subscribe_stream(name, "one")
        refused = await filled.ask("POST", f"{SPACE}/unsubscribe/one")
        assert (refused.status, name in refused.json["reason"]) == (412, True)
    assert list(await backlogs(filled)) == ["one", "two"]


@pytest.mark.brokers(count=2)
async def test_each_broker_has_the_stats_of_its_topics(filled: Admin) -> None:
    found: list[str] = []
    for broker in range(2):
        shown = (await filled.ask("GET", "/admin/v2/broker-stats/topics", at=broker)).json
        schemes = shown["public/default"]["0x00000000_0xffffffff"]
        for scheme, topics in schemes.items():
            assert all(name.startswith(f"{scheme}://") for name in topics)
            found += topics
            assert all(one["msgInCounter"] <= 2 for one in topics.values())
    assert len(found) == len(set(found)) == 5


@pytest.mark.brokers(count=2, policy_check_s=3600.0)
async def test_quotas_are_kept_at_once_by_all_brokers_when_one_is_asked(filled: Admin) -> None:
    quota = {"limitSize": 1, "policy": "consumer_backlog_eviction"}
    assert (await filled.ask("POST", f"{SPACE}/backlogQuota", quota)).status == 204
    assert await backlogs(filled) == {"one": [2, 2, 2], "two": [2, 2, 2]}
    assert (await filled.ask("GET", "/admin/v2/brokers/backlog-quota-check", at=0)).status == 204
    assert await backlogs(filled) == {"one": [0, 0, 0], "two": [0, 0, 0]}
