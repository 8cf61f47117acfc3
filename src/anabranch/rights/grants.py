"""The grants of a namespace in Pulsar's JSON (`auth_policies`), decoded for decisions.

A grant that cannot be read gives no right. A topic has one name for grants in all schemes: `topic://t/n/x`,
`persistent://t/n/x` and the segments of `x` share their grants, and each partition has those of `x` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from anabranch.errors import InvalidNameError
from anabranch.model.names import TopicName

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
ACTIONS: Final = (PRODUCE, CONSUME, "functions", "sources", "sinks", "packages")
"""Pulsar's actions; brokers act on the first two and store the others."""

AUTH_POLICIES: Final = "auth_policies"
NAMESPACE_AUTH: Final = "namespace_auth"
TOPIC_AUTH: Final = "destination_auth"
SUBSCRIPTION_AUTH: Final = "subscription_auth_roles"
SUBSCRIPTION_MODE: Final = "subscription_auth_mode"
PREFIX_MODE: Final = "Prefix"
SUBSCRIPTION_MODES: Final = ("None", PREFIX_MODE)

RoleActions = Mapping[str, frozenset[str]]
_NONE: Final[RoleActions] = {}


@dataclass(frozen=True, slots=True)
class NamespaceGrants:
    """The grants of one namespace."""

    roles: RoleActions
    """Actions of each role on every topic of the namespace."""
    topics: Mapping[str, RoleActions]
    """Actions of each role by the local name of a topic."""
    subscriptions: Mapping[str, frozenset[str]]
    """The only roles that may use a subscription; any consuming role may use one that is not listed."""
    prefixed: bool = False
    """Whether the name of a subscription must begin with the role that uses it."""

    def on_topic(self, name: TopicName) -> tuple[RoleActions, ...]:
        """Return the grants that apply to a topic, partition or segment."""
        own = self.topics.get(name.local, _NONE)
        whole = name.partitioned_topic.local
        return (self.roles, own) if whole == name.local else (self.roles, own, self.topics.get(whole, _NONE))


@dataclass(frozen=True, slots=True)
class Grants:
    """All grants that decide about a resource: those of its tenant and of its namespace."""

    admins: frozenset[str]
    namespace: NamespaceGrants


NO_NAMESPACE_GRANTS: Final = NamespaceGrants({}, {}, {})
NO_GRANTS: Final = Grants(frozenset(), NO_NAMESPACE_GRANTS)


def grants_of(namespace: str, policies: Mapping[str, Any]) -> NamespaceGrants:
    """Decode the policies of the namespace `tenant/namespace`."""
    given = _mapping(policies.get(AUTH_POLICIES))
    topics: dict[str, RoleActions] = {}
    for key, roles in _mapping(given.get(TOPIC_AUTH)).items():
        with suppress(InvalidNameError):
            name = TopicName.parse(key)
            if name.namespace_name == namespace:
                topics[name.local] = _joined(topics.get(name.local, _NONE), _role_actions(roles))
    subscriptions = _mapping(given.get(SUBSCRIPTION_AUTH))
    return NamespaceGrants(
        roles=_role_actions(given.get(NAMESPACE_AUTH)),
        topics=topics,
        subscriptions={name: _only(roles) for name, roles in subscriptions.items()},
        prefixed=policies.get(SUBSCRIPTION_MODE) == PREFIX_MODE,
    )


def _role_actions(value: object) -> RoleActions:
    return {role: _texts(actions) for role, actions in _mapping(value).items()}


def _joined(one: RoleActions, other: RoleActions) -> RoleActions:
    return {role: one.get(role, frozenset()) | other.get(role, frozenset()) for role in (*one, *other)}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> frozenset[str]:
    return frozenset(one for one in value if isinstance(one, str)) if isinstance(value, list) else frozenset()


def _only(value: object) -> frozenset[str]:
    """Return the roles of a reserved subscription; if malformed, the empty role, which no caller has."""
    return frozenset() if value in (None, []) else _texts(value) or frozenset([""])


def grant_key(name: TopicName) -> str:
    """Return the key of a topic's grants in `destination_auth`, the same in all schemes."""
    scheme = "topic" if "/" in name.local else "persistent"
    return f"{scheme}://{name.namespace_name}/{name.local}"


def with_role(policies: Mapping[str, Any], role: str, actions: Sequence[str] | None) -> dict[str, Any]:
    """Return policies that grant a role exactly these actions on the namespace; None removes its grant."""
    auth = _auth(policies)
    auth[NAMESPACE_AUTH] = _with(auth[NAMESPACE_AUTH], role, actions)
    return {**policies, AUTH_POLICIES: auth}


def with_topic_role(
    policies: Mapping[str, Any], name: TopicName, role: str, actions: Sequence[str] | None
) -> dict[str, Any]:
    """Return policies that grant a role exactly these actions on a topic; None removes its grant."""
    auth = _auth(policies)
    topics = {
        key: _with(roles, role, None) if _is_same(key, name) else roles
        for key, roles in auth[TOPIC_AUTH].items()
    }
    if actions is not None:
        key = grant_key(name)
        topics[key] = _with(topics.get(key), role, actions)
    auth[TOPIC_AUTH] = {key: roles for key, roles in topics.items() if roles}
    return {**policies, AUTH_POLICIES: auth}


def without_topic(policies: Mapping[str, Any], name: TopicName) -> dict[str, Any]:
    """Return policies without any grant on a topic and its partitions."""
    auth = _auth(policies)
    auth[TOPIC_AUTH] = {
        key: roles for key, roles in auth[TOPIC_AUTH].items() if not _is_same(key, name, with_partitions=True)
    }
    return {**policies, AUTH_POLICIES: auth}


def with_subscription_roles(
    policies: Mapping[str, Any], subscription: str, roles: Sequence[str] | None
) -> dict[str, Any]:
    """Return policies that reserve a subscription for these roles; without roles it is not reserved."""
    auth = _auth(policies)
    auth[SUBSCRIPTION_AUTH] = _with(auth[SUBSCRIPTION_AUTH], subscription, roles or None)
    return {**policies, AUTH_POLICIES: auth}


def _auth(policies: Mapping[str, Any]) -> dict[str, Any]:
    given = _mapping(policies.get(AUTH_POLICIES))
    parts = (NAMESPACE_AUTH, TOPIC_AUTH, SUBSCRIPTION_AUTH)
    return {**given, **{part: _mapping(given.get(part)) for part in parts}}


def _with(given: object, key: str, value: Sequence[str] | None) -> dict[str, Any]:
    kept = {name: one for name, one in _mapping(given).items() if name != key}
    return kept if value is None else {**kept, key: list(value)}


def _is_same(key: str, name: TopicName, *, with_partitions: bool = False) -> bool:
    try:
        known = TopicName.parse(key)
    except InvalidNameError:
        return False
    whole = known.partitioned_topic if with_partitions else known
    return known.namespace_name == name.namespace_name and name.local in (known.local, whole.local)
