"""Quotas in the admin API: Pulsar's paths and JSON for namespaces, and our own for tenants."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import settle

NAMESPACE = "/admin/v2/namespaces/public/default"
TENANT = "/admin/v2/tenants/public"

COUNTS = {
    "maxProducersPerTopic": "max_producers_per_topic",
    "maxConsumersPerTopic": "max_consumers_per_topic",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
    "maxTopicsPerNamespace": "max_topics_per_namespace",
}
PUBLISH = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
DISPATCH = {
    "dispatchThrottlingRateInMsg": 5,
    "dispatchThrottlingRateInByte": 1024,
    "relativeToPublishRate": True,
    "ratePeriodInSecond": 2,
}
RATES = {
    "publishRate": ("publishMaxMessageRate", PUBLISH),
    "dispatchRate": ("topicDispatchRate", DISPATCH),
    "subscriptionDispatchRate": ("subscriptionDispatchRate", DISPATCH),
}


@pytest.mark.parametrize(("path", "field"), COUNTS.items())
def test_a_count_is_set_shown_and_removed_as_in_pulsar(admin: Admin, path: str, field: str) -> None:
    unset = (200, b"0") if path == "maxTopicsPerNamespace" else (204, b"")
    assert admin("GET", f"{NAMESPACE}/{path}")[::2] == unset
    assert admin("POST", f"{NAMESPACE}/{path}", 3).status == 204
    assert admin("GET", f"{NAMESPACE}/{path}").json == 3
    assert admin("GET", NAMESPACE).json[field] == 3
    wrongs: tuple[object, ...] = (-1, 1.5, "3", True, None, {})
    for wrong in wrongs:
        assert admin("POST", f"{NAMESPACE}/{path}", wrong).status == 412
    assert admin("GET", f"{NAMESPACE}/{path}").json == 3
    assert admin("DELETE", f"{NAMESPACE}/{path}").status == 204
    assert admin("GET", f"{NAMESPACE}/{path}")[::2] == unset
    assert field not in admin("GET", NAMESPACE).json


@pytest.mark.parametrize("path", RATES)
def test_a_rate_is_set_shown_and_removed_as_in_pulsar(admin: Admin, path: str) -> None:
    field, rate = RATES[path]
    assert admin("GET", f"{NAMESPACE}/{path}").status == 204
    assert admin("POST", f"{NAMESPACE}/{path}", rate).status == 204
    assert admin("GET", f"{NAMESPACE}/{path}").json == rate
    assert admin("GET", NAMESPACE).json[field] == {"standalone": rate}
    assert admin("DELETE", f"{NAMESPACE}/{path}").status == 204
    assert admin("GET", f"{NAMESPACE}/{path}").status == 204


@pytest.mark.parametrize(
    "wrong",
    [None, [], 3, {"ratePeriodInSecond": 0}, {"dispatchThrottlingRateInMsg": "5"}, {"other": 1}],
)
def test_a_rate_that_cannot_be_understood_is_refused(admin: Admin, wrong: Any) -> None:
    assert admin("POST", f"{NAMESPACE}/dispatchRate", wrong).status == 412


def test_missing_fields_of_a_rate_are_no_limit(admin: Admin) -> None:
    assert admin("POST", f"{NAMESPACE}/publishRate", {"publishThrottlingRateInMsg": 7}).status == 204
    assert admin("GET", f"{NAMESPACE}/publishRate").json == PUBLISH | {"publishThrottlingRateInMsg": 7}


def test_a_namespace_cannot_be_created_with_quotas_that_make_no_sense(admin: Admin) -> None:
    path = "/admin/v2/namespaces/public/other"
    for policies in (
        {"max_producers_per_topic": -1},
        {"publishMaxMessageRate": 5},
        {"topicDispatchRate": {"standalone": {"other": 1}}},
    ):
        assert admin("PUT", path, policies).status == 412
    assert admin("PUT", path, {"max_producers_per_topic": 2}).status == 204
    assert admin("GET", f"{path}/maxProducersPerTopic").json == 2


def test_the_quotas_of_a_tenant_are_beside_its_info(admin: Admin) -> None:
    info = admin("GET", TENANT).json
    assert admin("GET", f"{TENANT}/quotas").json == {}
    quotas = {"maxProducers": 5, "maxConnections": 2, "publishRate": PUBLISH}
    assert admin("POST", f"{TENANT}/quotas", quotas).status == 204
    assert admin("GET", f"{TENANT}/quotas").json == quotas
    assert admin("GET", TENANT).json == info
    assert admin("POST", TENANT, {"adminRoles": ["a"], "allowedClusters": ["standalone"]}).status == 204
    assert admin("GET", f"{TENANT}/quotas").json == quotas, "the update of a tenant keeps its quotas"
    assert admin("POST", f"{TENANT}/quotas", {"maxDogs": 1}).status == 412
    assert admin("POST", f"{TENANT}/quotas", {"maxTopics": -1}).status == 412
    assert admin("POST", f"{TENANT}/quotas").status == 400
    assert admin("DELETE", f"{TENANT}/quotas").status == 204
    assert admin("GET", f"{TENANT}/quotas").json == {}
    assert admin("GET", "/admin/v2/tenants/absent/quotas").status == 404


def test_a_new_tenant_brings_no_quotas_along(admin: Admin) -> None:
    body = {"allowedClusters": ["standalone"], "quotas": {"maxTopics": 1}}
    assert admin("PUT", "/admin/v2/tenants/new", body).status == 204
    assert admin("GET", "/admin/v2/tenants/new/quotas").json == {}


@pytest.mark.brokers(max_namespaces_per_tenant=2)
def test_a_tenant_has_only_so_many_namespaces(admin: Admin) -> None:
    assert admin("PUT", "/admin/v2/namespaces/public/second").status == 204
    refused = admin("PUT", "/admin/v2/namespaces/public/third")
    assert refused.status == 412
    assert "maxNamespacesPerTenant=2" in refused.json["reason"]


async def test_the_namespaces_of_one_tenant_can_be_limited(brokers: Brokers) -> None:
    admin = Admin(brokers)
    await admin.ask("POST", f"{TENANT}/quotas", {"maxNamespaces": 1})
    await admin.ask("PUT", "/admin/v2/tenants/other", {"allowedClusters": ["standalone"]})
    await settle()
    refused = await admin.ask("PUT", "/admin/v2/namespaces/public/second")
    assert refused.status == 412
    assert "maxNamespaces=1" in refused.json["reason"]
    assert (await admin.ask("PUT", "/admin/v2/namespaces/other/first")).status == 204


TOPICS = {
    "persistent": "/admin/v2/persistent/public/default/orders",
    "scalable": "/admin/v2/scalable/public/default/orders",
}


@pytest.fixture(params=TOPICS)
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    path = TOPICS[request.param]
    assert admin("PUT", path).status == 204
    return path


@pytest.mark.parametrize("path", RATES)
def test_a_rate_of_a_topic_is_set_shown_and_removed_as_in_pulsar(admin: Admin, topic: str, path: str) -> None:
    _, rate = RATES[path]
    assert admin("GET", f"{topic}/{path}").status == 204
    assert admin("POST", f"{topic}/{path}", rate).status == 204
    assert admin("GET", f"{topic}/{path}").json == rate
    assert "topic_rates" not in admin("GET", NAMESPACE).json
    assert admin("POST", f"{topic}/{path}", {"other": 1}).status == 412
    assert admin("GET", f"{topic}/{path}").json == rate
    assert admin("DELETE", f"{topic}/{path}").status == 204
    assert admin("GET", f"{topic}/{path}").status == 204


def test_the_rate_of_the_namespace_is_shown_as_applied_where_a_topic_has_none(
    admin: Admin, topic: str
) -> None:
    other = PUBLISH | {"publishThrottlingRateInMsg": 99}
    assert admin("POST", f"{NAMESPACE}/publishRate", other).status == 204
    assert admin("GET", f"{topic}/publishRate").status == 204
    assert admin("GET", f"{topic}/publishRate?applied=true").json == other
    assert admin("POST", f"{topic}/publishRate", PUBLISH).status == 204
    assert admin("GET", f"{topic}/publishRate?applied=true").json == PUBLISH
    assert admin("GET", f"{NAMESPACE}/publishRate").json == other


def test_a_topic_that_does_not_exist_has_no_rates(admin: Admin) -> None:
    for path in TOPICS.values():
        assert admin("GET", f"{path}/publishRate").status == 404
        assert admin("POST", f"{path}/publishRate", PUBLISH).status == 404


def test_a_deleted_topic_takes_its_rates_along(admin: Admin, topic: str) -> None:
    assert admin("POST", f"{topic}/publishRate", PUBLISH).status == 204
    assert admin("DELETE", topic).status == 204
    assert admin("PUT", topic).status == 204
    assert admin("GET", f"{topic}/publishRate").status == 204
