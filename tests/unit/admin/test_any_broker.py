"""The admin API on two brokers: each call goes to the other one than the call before.

Everything that holds for one broker holds here too, so its tests are run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.admin.server import create_app
from anabranch.testing.faults import SimClock
from anabranch.testing.network import SimNetwork
from anabranch.testing.simloop import SimLoop
from tests.unit.admin.test_admin import (
    CLASSIC,
    ORDERS,
    Admin,
    Answer,
    orders,
    test_a_classic_topic_comes_and_goes,
    test_a_layout_change_that_cannot_be_is_refused,
    test_a_name_may_hold_an_escaped_slash,
    test_a_partitioned_topic_grows,
    test_a_sealed_segment_cannot_be_split_again,
    test_a_topic_is_created_once_listed_and_deleted,
    test_an_unknown_topic_is_404_everywhere,
    test_auto_scale_policies_are_kept_and_checked,
    test_bad_calls_are_refused_with_a_reason,
    test_classic_subscriptions,
    test_metadata_has_pulsars_names,
    test_namespace_policies_are_kept_as_given,
    test_segments_that_do_not_touch_are_not_merged,
    test_split_merge_and_rebucket_change_the_layout,
    test_subscriptions_come_and_go,
    test_tenants_and_namespaces,
    test_topics_are_filtered_by_properties,
    test_why_explains_itself,
)
from tests.unit.broker.cluster import Brokers

__all__ = [
    "orders",
    "test_a_classic_topic_comes_and_goes",
    "test_a_layout_change_that_cannot_be_is_refused",
    "test_a_name_may_hold_an_escaped_slash",
    "test_a_partitioned_topic_grows",
    "test_a_sealed_segment_cannot_be_split_again",
    "test_a_topic_is_created_once_listed_and_deleted",
    "test_an_unknown_topic_is_404_everywhere",
    "test_auto_scale_policies_are_kept_and_checked",
    "test_bad_calls_are_refused_with_a_reason",
    "test_classic_subscriptions",
    "test_metadata_has_pulsars_names",
    "test_namespace_policies_are_kept_as_given",
    "test_segments_that_do_not_touch_are_not_merged",
    "test_split_merge_and_rebucket_change_the_layout",
    "test_subscriptions_come_and_go",
    "test_tenants_and_namespaces",
    "test_topics_are_filtered_by_properties",
    "test_why_explains_itself",
]


class Admins(Admin):
    """Calls two brokers in turn."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        SimNetwork(self.loop)
        self.brokers = Brokers(2)
        self.loop.run(self.brokers.start_all())
        clock = SimClock(self.loop)
        self._apps = [
            create_app(self.brokers[number], clock, f"http://broker-{number}:8080") for number in (0, 1)
        ]
        self._calls = 0

    def __call__(self, method: str, path: str, body: object = None) -> Answer:
        self._app = self._apps[self._calls % 2]
        self._calls += 1
        return self.loop.run(self.ask(method, path, body))

    def both(self, method: str, path: str) -> tuple[Answer, Answer]:
        """The same call at each broker."""
        return self(method, path), self(method, path)

    async def stop(self) -> None:
        for number in (0, 1):
            await self.brokers.stop(number)


@pytest.fixture
def admin(loop: SimLoop) -> Iterator[Admins]:
    admins = Admins(loop)
    yield admins
    loop.run(admins.stop())


def test_stats_say_where_each_segment_is(orders: Admins) -> None:
    one, other = orders.both("GET", f"{ORDERS}/stats")
    assert one.json == other.json
    owners = {segment["ownerBroker"] for segment in one.json["segments"].values()}
    assert owners == {"pulsar://broker-0:6650", "pulsar://broker-1:6650"}


def test_living_brokers_are_listed_and_topics_looked_up(admin: Admins) -> None:
    path = "/admin/v2/brokers/standalone"
    answers = [answer.json for answer in admin.both("GET", path)]
    assert [len(answer) for answer in answers] == [2, 2]
    one, other = admin.both("GET", "/admin/v2/brokers/workers")
    assert [(b["id"], b["serviceUrl"], b["stores"]) for b in one.json] == [
        (0, "pulsar://broker-0:6650", [0]),
        (1, "pulsar://broker-1:6650", [1]),
    ]
    assert len(other.json) == 2
    assert admin("PUT", f"{CLASSIC}/partitions", 4).status == 204
    found: list[Any] = []
    for index in range(4):
        part = f"/lookup/v2/topic/persistent/public/default/{CLASSIC.rsplit('/', 1)[1]}-partition-{index}"
        one, other = admin.both("GET", part)
        assert one.json["brokerUrl"] == other.json["brokerUrl"]
        found.append(json.loads(one.body)["brokerUrl"])
    assert sorted(found) == sorted(["pulsar://broker-0:6650", "pulsar://broker-1:6650"] * 2)


def test_partitions_are_served_by_their_owners_and_added_up(admin: Admins) -> None:
    assert admin("PUT", f"{CLASSIC}/partitions", 4).status == 204
    for path in ("stats", "partitioned-stats", "subscriptions"):
        one, other = admin.both("GET", f"{CLASSIC}/{path}")
        assert (one.status, one.json) == (200, other.json)
    assert admin("PUT", f"{CLASSIC}/subscription/s", "earliest").status == 204
    assert admin("GET", f"{CLASSIC}/subscriptions").json == ["s"]
    parts = admin("GET", f"{CLASSIC}/partitioned-stats").json["partitions"]
    assert len({part["ownerBroker"] for part in parts.values()}) == 2
    assert all("s" in part["subscriptions"] for part in parts.values())
    for action in ("skip_all", "skip/3", "resetcursor/0", "expireMessages/1"):
        assert admin("POST", f"{CLASSIC}/subscription/s/{action}").status == 204
    assert admin("DELETE", f"{CLASSIC}/subscription/s").status == 204
    assert len(admin("POST", f"{CLASSIC}/terminate/partitions").json) == 4
    assert admin("DELETE", f"{CLASSIC}/partitions").status == 204
    assert [names for storage in admin.brokers.storages.values() for names in storage.names()] == []
