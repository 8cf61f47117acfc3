"""Laws of grants: any stored JSON can be read, a grant reaches its topic alone, a revocation undoes it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.names import TopicName
from anabranch.rights.callers import Caller
from anabranch.rights.decide import RightsRules, allowed
from anabranch.rights.grants import (
    Grants,
    grants_of,
    with_role,
    with_subscription_roles,
    with_topic_role,
    without_topic,
)
from anabranch.rights.needs import Right, on_topic

NAMESPACE = "shop/prod"
SCHEMES = ("persistent", "topic", "segment")
LOCALS = st.sampled_from(["a", "b", "a-partition-0", "a-partition-1", "b-partition-0", "a-partition-", "a/b"])
ROLES = st.sampled_from(["one", "two", "on", "*", "o*"])
ACTIONS = st.lists(st.sampled_from(["produce", "consume", "functions"]), unique=True, min_size=1)
KEYS = st.sampled_from(
    [
        "auth_policies",
        "namespace_auth",
        "destination_auth",
        "subscription_auth_roles",
        "subscription_auth_mode",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["produce", "Prefix"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=6,
)
POLICIES = st.dictionaries(KEYS, JSON, max_size=4)


@st.composite
def names(draw: st.DrawFn) -> TopicName:
    local = draw(LOCALS)
    scheme = draw(st.sampled_from(SCHEMES if "/" not in local else SCHEMES[1:]))
    suffix = "/0000-ffff-0" if scheme == "segment" else ""
    return TopicName.parse(f"{scheme}://{NAMESPACE}/{local}{suffix}")


def may(role: str, right: Right, name: TopicName, policies: dict[str, Any]) -> bool:
    grants = Grants(frozenset(), grants_of(NAMESPACE, policies))
    return allowed(Caller(role), on_topic(right, name, "sub"), grants, RightsRules()).allowed


@given(POLICIES, names(), ROLES)
def test_any_stored_policies_can_be_read_and_changed(
    policies: dict[str, Any], name: TopicName, role: str
) -> None:
    may(role, Right.CONSUME, name, policies)
    for changed in (
        with_role(policies, role, ["produce"]),
        with_topic_role(policies, name, role, ["produce"]),
        with_subscription_roles(policies, "sub", [role]),
    ):
        assert may(role, Right.PRODUCE, name, with_role(changed, role, ["produce"]))
    assert not grants_of(NAMESPACE, without_topic(policies, name)).topics.get(name.local)


@given(names(), names(), ROLES, ROLES, ACTIONS)
def test_a_grant_on_a_topic_reaches_that_role_and_that_topic_alone(
    granted: TopicName, asked: TopicName, role: str, asking: str, actions: list[str]
) -> None:
    policies = with_topic_role({}, granted, role, actions)
    same = asked.local == granted.local or asked.partitioned_topic.local == granted.local
    for right, action in ((Right.PRODUCE, "produce"), (Right.CONSUME, "consume")):
        assert may(asking, right, asked, policies) == (same and asking == role and action in actions)


@given(names(), names(), ROLES, ROLES, ACTIONS)
def test_a_revocation_ends_one_grant_and_no_other(
    one: TopicName, other: TopicName, role: str, second: str, actions: list[str]
) -> None:
    before = with_topic_role({}, other, second, actions)
    after = with_topic_role(with_topic_role(before, one, role, ["produce"]), one, role, None)
    expected = with_topic_role(before, one, role, None)
    assert grants_of(NAMESPACE, after) == grants_of(NAMESPACE, expected)
    if (one.local, role) != (other.local, second):
        assert grants_of(NAMESPACE, after) == grants_of(NAMESPACE, before)


@given(names(), ROLES, ROLES, ACTIONS)
def test_a_later_grant_replaces_the_earlier_one(
    name: TopicName, role: str, other: str, actions: list[str]
) -> None:
    for change in (with_role, lambda policies, *more: with_topic_role(policies, name, *more)):
        policies = change(change(change({}, other, ["consume"]), role, ["produce", "consume"]), role, actions)
        for right, action in ((Right.PRODUCE, "produce"), (Right.CONSUME, "consume")):
            assert may(role, right, name, policies) == (action in actions)
