"""Answers of the admin API that name brokers: owners, lookups, health and lists."""

from __future__ import annotations

import pytest

from tests.harness.admin import CLASSIC, ORDERS, Admin

two_brokers = pytest.mark.brokers(count=2)


@two_brokers
def test_stats_say_where_each_segment_is(orders: Admin) -> None:
    one, other = orders.both("GET", f"{ORDERS}/stats")
    assert one.json == other.json
    owners = {segment["ownerBroker"] for segment in one.json["segments"].values()}
    assert owners == {"pulsar://broker-0:6650", "pulsar://broker-1:6650"}


@two_brokers
def test_living_brokers_are_listed_and_topics_looked_up(admin: Admin) -> None:
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
    found: list[str] = []
    for index in range(4):
        part = f"/lookup/v2/topic/persistent/public/default/{CLASSIC.rsplit('/', 1)[1]}-partition-{index}"
        one, other = admin.both("GET", part)
        assert one.json["brokerUrl"] == other.json["brokerUrl"]
        found.append(one.json["brokerUrl"])
    assert sorted(found) == sorted(["pulsar://broker-0:6650", "pulsar://broker-1:6650"] * 2)


@two_brokers
def test_partitions_are_served_by_their_owners_and_added_up(admin: Admin) -> None:
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


@two_brokers
def test_new_partitions_have_the_durable_subscriptions_of_the_others(admin: Admin) -> None:
    assert admin("PUT", f"{CLASSIC}/partitions", 2).status == 204
    assert admin("PUT", f"{CLASSIC}/subscription/s", "latest").status == 204
    assert admin("PUT", f"{CLASSIC}-partition-1/subscription/other", "latest").status == 204
    assert admin("POST", f"{CLASSIC}/partitions", 5).status == 204
    for index in range(2, 5):
        assert admin("GET", f"{CLASSIC}-partition-{index}/subscriptions").json == ["other", "s"]
    assert admin("GET", f"{CLASSIC}-partition-0/subscriptions").json == ["s"]


def test_health_version_lists_and_lookups(admin: Admin) -> None:
    assert admin("GET", "/status.html").body == b"OK"
    assert admin("GET", "/admin/v2/brokers/health").body == b"ok"
    assert admin("GET", "/admin/v2/brokers/ready").body == b"ok"
    assert admin("GET", "/admin/v2/brokers/version").body.startswith(b"Anabranch ")
    assert admin("GET", "/admin/v2/brokers").json == ["broker-0:8080"]
    assert admin("GET", "/admin/v2/brokers/standalone").json == ["broker-0:8080"]
    assert admin("GET", "/admin/v2/brokers/elsewhere").status == 404
    lookup = admin("GET", "/lookup/v2/topic/persistent/public/default/t").json
    assert lookup["brokerUrl"] == "pulsar://broker-0:6650"
    assert lookup["httpUrl"] == "http://broker-0:8080"
    assert admin("GET", "/lookup/v2/topic/carrier-pigeon/public/default/t").status == 404


@pytest.mark.brokers(
    http_port=-1, https_port=8443, tls_port=6651, tls_certificate_file="certificate", tls_key_file="key"
)
def test_addresses_over_tls_are_told_and_missing_ones_are_not(admin: Admin) -> None:
    assert admin("GET", "/lookup/v2/topic/persistent/public/default/t").json == {
        "brokerUrl": "pulsar://broker-0:6650",
        "brokerUrlTls": "pulsar+ssl://broker-0:6651",
        "httpUrl": None,
        "httpUrlTls": "https://broker-0:8443",
        "nativeUrl": "pulsar://broker-0:6650",
        "brokerId": "broker-0:8443",
    }
    (worker,) = admin("GET", "/admin/v2/brokers/workers").json
    assert (worker["webServiceUrl"], worker["webServiceUrlTls"]) == (None, "https://broker-0:8443")
    assert worker["serviceUrlTls"] == "pulsar+ssl://broker-0:6651"
    assert admin("GET", "/admin/v2/brokers/leaderBroker").json["serviceUrl"] == "https://broker-0:8443"
    assert admin("GET", "/admin/v2/clusters/standalone").json == {
        "brokerServiceUrl": "pulsar://broker-0:6650",
        "brokerServiceUrlTls": "pulsar+ssl://broker-0:6651",
        "serviceUrlTls": "https://broker-0:8443",
    }
