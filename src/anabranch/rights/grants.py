"""The grants of a namespace in Pulsar's JSON (`auth_policies`), decoded for decisions.

A grant that cannot be read gives no right. A topic has one name for grants in all schemes: `topic://t/n/x`,
`persistent://t/n/x` and the segments of `x` share their grants, and each partition has those of `x` too.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        """The grants that apply to a topic, partition or segment."""
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
        subscriptions={name: _texts(roles) for name, roles in subscriptions.items()},
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
