"""Calls as the admin clients and the HTTP lookups of Pulsar's clients make them."""

from __future__ import annotations

import pytest

from tests.harness.admin import CLASSIC, Admin

LOOKUP = "/lookup/v2/topic/persistent/public/default"
TOPICS = "/admin/v2/persistent/public/default"
NEW = f"{TOPICS}/new/partitions?checkAllowAutoCreation=true"


def test_a_topic_that_its_first_use_makes_is_found_before(admin: Admin) -> None:
    assert admin("GET", NEW).json["partitions"] == 0
    assert admin("GET", f"{LOOKUP}/new").status == 200
    # Neither question makes the topic.
    assert admin("GET", f"{TOPICS}/new/partitions").status == 404
    assert admin("GET", TOPICS).json == []


@pytest.mark.brokers(auto_create_topics=False)
def test_a_topic_that_no_use_makes_is_not_found(admin: Admin) -> None:
    assert admin("GET", NEW).status == 404
    assert admin("GET", f"{LOOKUP}/new").status == 404
    assert admin("PUT", f"{TOPICS}/new/partitions", 2).status == 204
    assert admin("GET", NEW).json["partitions"] == 2
    for name in ("new", "new-partition-1"):
        assert admin("GET", f"{LOOKUP}/{name}").status == 200
    assert admin("GET", f"{LOOKUP}/new-partition-2").status == 404


def test_the_policy_of_a_namespace_decides_before_the_broker(admin: Admin) -> None:
    policy = {"allowAutoTopicCreation": False}
    assert admin("POST", "/admin/v2/namespaces/public/default/autoTopicCreation", policy).status == 204
    assert admin("GET", NEW).status == 404
    assert admin("GET", f"{LOOKUP}/new").status == 404


@pytest.mark.parametrize("body", [b"", b"null", b'""', b" null\n"])
def test_all_ways_to_write_no_body_are_the_same(admin: Admin, body: bytes) -> None:
    assert admin("PUT", CLASSIC, body).status == 204
    assert admin("PUT", "/admin/v2/namespaces/public/other", body).status == 204
    assert admin("PUT", f"{CLASSIC}/subscription/s", body).status == 204


def test_a_partitioned_topic_comes_with_properties_or_without(admin: Admin) -> None:
    body = {"partitions": 3, "deleted": False, "properties": {"colour": "red"}}
    assert admin("PUT", f"{CLASSIC}/partitions", body).status == 204
    shown = admin("GET", f"{CLASSIC}/partitions").json
    assert (shown["partitions"], shown["properties"]) == (3, {"colour": "red"})
    assert admin("PUT", f"{CLASSIC}/partitions", {"partitions": 3, "properties": {}}).status == 409
    assert admin("PUT", f"{TOPICS}/other/partitions", {"partitions": 0, "properties": None}).status == 412
    assert admin("PUT", f"{TOPICS}/other/partitions", {"properties": {}}).status == 412


def test_an_unknown_listener_is_refused(admin: Admin) -> None:
    assert admin("GET", f"{LOOKUP}/new?listenerName=").status == 200
    refused = admin("GET", f"{LOOKUP}/new?listenerName=inside")
    assert refused.status == 405
    assert "inside" in refused.json["reason"]


def test_a_tenant_may_have_no_admins(admin: Admin) -> None:
    body = {"adminRoles": None, "allowedClusters": ["standalone"]}
    assert admin("PUT", "/admin/v2/tenants/t", body).status == 204
    assert admin("GET", "/admin/v2/tenants/t").json["adminRoles"] == []
