"""Decisions about rights, on values."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.model.names import TopicName
from anabranch.rights.callers import ANYONE, Caller
from anabranch.rights.decide import RightsRules, allowed, matches
from anabranch.rights.grants import NO_GRANTS, Grants, grants_of
from anabranch.rights.needs import Need, Right, on_topic

RULES = RightsRules(superusers=frozenset({"root"}), proxies=frozenset({"proxy"}))
TOPIC = TopicName.parse("topic://shop/prod/orders")


def given(policies: dict[str, Any], *admins: str) -> Grants:
    return Grants(frozenset(admins), grants_of("shop/prod", policies))


def auth(**parts: Any) -> dict[str, Any]:
    return {"auth_policies": parts}


def test_a_role_has_no_right_by_default() -> None:
    assert not allowed(Caller("app"), on_topic(Right.PRODUCE, TOPIC), NO_GRANTS, RULES).allowed
    assert not allowed(ANYONE, Need(Right.AUTHENTICATED), NO_GRANTS, RULES).allowed
    assert not allowed(ANYONE, on_topic(Right.LOOK_UP, TOPIC), NO_GRANTS, RULES).allowed


@pytest.mark.parametrize("right", [Right.PRODUCE, Right.CONSUME, Right.TENANT_ADMIN, Right.SUPERUSER])
def test_a_superuser_needs_no_grant(right: Right) -> None:
    assert allowed(Caller("root"), on_topic(right, TOPIC), NO_GRANTS, RULES).allowed


def test_not_even_a_superuser_is_a_broker() -> None:
    assert not allowed(Caller("root"), Need(Right.PEER), NO_GRANTS, RULES).allowed


def test_an_empty_role_matches_no_grant() -> None:
    grants = given(auth(namespace_auth={"": ["produce"], "*": ["produce"]}), "")
    rules = RightsRules(superusers=frozenset({""}), wildcards=True)
    assert not allowed(ANYONE, on_topic(Right.PRODUCE, TOPIC), grants, rules).allowed


def test_a_grant_on_a_topic_reaches_its_segments_and_partitions_and_no_other_topic() -> None:
    grants = given(auth(destination_auth={"persistent://shop/prod/orders": {"app": ["consume"]}}))

    def may(name: str) -> bool:
        return allowed(Caller("app"), on_topic(Right.CONSUME, TopicName.parse(name)), grants, RULES).allowed

    assert may("persistent://shop/prod/orders")
    assert may("topic://shop/prod/orders")
    assert may("persistent://shop/prod/orders-partition-7")
    assert may("segment://shop/prod/orders/0000-ffff-0")
    assert not may("persistent://shop/prod/orders2")
    assert not may("segment://shop/prod/orders/more/0000-ffff-0")
    assert not may("persistent://shop/prod/orders-partition-07")


def test_a_grant_on_a_partition_reaches_neither_the_topic_nor_other_partitions() -> None:
    grants = given(auth(destination_auth={"persistent://shop/prod/orders-partition-1": {"app": ["produce"]}}))

    def may(name: str) -> bool:
        return allowed(Caller("app"), on_topic(Right.PRODUCE, TopicName.parse(name)), grants, RULES).allowed

    assert may("persistent://shop/prod/orders-partition-1")
    assert not may("persistent://shop/prod/orders-partition-2")
    assert not may("persistent://shop/prod/orders")


def test_a_grant_whose_key_names_another_namespace_gives_no_right() -> None:
    grants = given(
        auth(destination_auth={"persistent://other/prod/orders": {"app": ["produce"]}, "orders": 5})
    )
    assert not allowed(Caller("app"), on_topic(Right.PRODUCE, TOPIC), grants, RULES).allowed


@pytest.mark.parametrize(
    "broken", [None, 5, [], {"namespace_auth": []}, {"namespace_auth": {"app": "produce"}}]
)
def test_a_grant_that_cannot_be_read_gives_no_right(broken: Any) -> None:
    grants = given({"auth_policies": broken})
    assert not allowed(Caller("app"), on_topic(Right.PRODUCE, TOPIC), grants, RULES).allowed


@pytest.mark.parametrize("broken", ["app", 5, {"app": 1}, [5]])
def test_a_reservation_that_cannot_be_read_opens_no_subscription(broken: Any) -> None:
    grants = given(
        auth(namespace_auth={"app": ["consume"]}, subscription_auth_roles={"billing": broken, "unset": None})
    )

    def may(subscription: str) -> bool:
        need = on_topic(Right.CONSUME, TOPIC, subscription)
        return allowed(Caller("app"), need, grants, RULES).allowed

    assert not may("billing")
    assert may("unset")


def test_only_the_listed_roles_use_a_subscription() -> None:
    granted = {"one": ["consume"], "two": ["consume"]}
    grants = given(
        auth(namespace_auth=granted, subscription_auth_roles={"billing": ["one", "three"], "empty": []})
    )

    def may(role: str, subscription: str) -> bool:
        need = on_topic(Right.CONSUME, TOPIC, subscription)
        return allowed(Caller(role), need, grants, RULES).allowed

    assert may("one", "billing")
    assert not may("two", "billing")
    assert not may("three", "billing")
    assert may("two", "other")
    assert may("two", "empty")


def test_in_prefix_mode_a_subscription_begins_with_its_role() -> None:
    grants = given({"subscription_auth_mode": "Prefix", **auth(namespace_auth={"app": ["consume"]})}, "boss")

    def may(role: str, subscription: str) -> bool:
        need = on_topic(Right.CONSUME, TOPIC, subscription)
        return allowed(Caller(role), need, grants, RULES).allowed

    assert may("app", "app-billing")
    assert not may("app", "billing")
    assert may("boss", "billing")


def test_topics_are_listed_with_a_grant_on_the_namespace_and_not_on_a_topic() -> None:
    listing = Need(Right.USE_NAMESPACE, "shop", "prod")
    whole = given(auth(namespace_auth={"app": ["consume"], "other": ["functions"]}))
    one = given(auth(destination_auth={"topic://shop/prod/orders": {"app": ["consume"]}}))
    assert allowed(Caller("app"), listing, whole, RULES).allowed
    assert not allowed(Caller("other"), listing, whole, RULES).allowed
    assert not allowed(Caller("app"), listing, one, RULES).allowed


def test_wildcards_count_only_where_they_are_switched_on() -> None:
    grants = given(auth(namespace_auth={"app-*": ["produce"], "*-test": ["consume"]}))
    on = RightsRules(wildcards=True)
    for role, right in (("app-1", Right.PRODUCE), ("my-test", Right.CONSUME)):
        assert allowed(Caller(role), on_topic(right, TOPIC), grants, on).allowed
        assert not allowed(Caller(role), on_topic(right, TOPIC), grants, RULES).allowed
    assert not allowed(Caller("app"), on_topic(Right.PRODUCE, TOPIC), grants, on).allowed
    assert not matches("a*b", "axb")


def test_a_proxy_and_its_client_both_need_the_right() -> None:
    need = on_topic(Right.PRODUCE, TOPIC)
    both = given(auth(namespace_auth={"proxy": ["produce"], "app": ["produce"]}))
    alone = given(auth(namespace_auth={"proxy": ["produce"]}))
    assert allowed(Caller("proxy", original="app"), need, both, RULES).allowed
    assert not allowed(Caller("proxy", original="app"), need, alone, RULES).allowed
    assert not allowed(Caller("proxy"), need, both, RULES).allowed
    assert not allowed(Caller("app", original="root"), need, both, RULES).allowed
