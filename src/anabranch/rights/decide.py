"""Decides whether a caller has a right, by Pulsar's model: everything not granted is denied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.rights.callers import Caller
from anabranch.rights.grants import CONSUME, PRODUCE, Grants, NamespaceGrants, RoleActions
from anabranch.rights.needs import Need, Right
from anabranch.rights.proxies import fault_of_proxy


@dataclass(frozen=True, slots=True)
class RightsRules:
    """The settings that decide together with the grants."""

    superusers: frozenset[str] = frozenset()
    proxies: frozenset[str] = frozenset()
    wildcards: bool = False


class RightsDecision(NamedTuple):
    """Whether a caller may proceed, and why. The reason is for the audit log and never for the caller."""

    allowed: bool
    reason: str


def allowed(caller: Caller, need: Need, grants: Grants, rules: RightsRules) -> RightsDecision:
    """Decide about one need. Behind a proxy, the proxy and its client both need the right.

    Grants only add rights, except that the grants of a subscription restrict roles that have nothing but a
    grant.
    """
    if need.right in (Right.OPEN, Right.OWN):
        return RightsDecision(True, "needs no right")
    if need.right is Right.PEER:
        return RightsDecision(False, "only a broker of this cluster may send this")
    fault = fault_of_proxy(caller, rules.proxies)
    if fault:
        return RightsDecision(False, fault)
    decision = _of_role(caller.role, need, grants, rules)
    if decision.allowed and caller.original:
        decision = _of_role(caller.original, need, grants, rules)
    return decision


def _of_role(role: str, need: Need, grants: Grants, rules: RightsRules) -> RightsDecision:
    if not role:
        return RightsDecision(False, "the caller has no role")
    if need.right is Right.AUTHENTICATED:
        return RightsDecision(True, f"{role!r} is proven")
    if role in rules.superusers:
        return RightsDecision(True, f"{role!r} is a superuser")
    if need.right is Right.SUPERUSER:
        return RightsDecision(False, f"{role!r} is not a superuser")
    if role in grants.admins:
        return RightsDecision(True, f"{role!r} is an admin of tenant {need.tenant}")
    if need.right is Right.TENANT_ADMIN:
        return RightsDecision(False, f"{role!r} is not an admin of tenant {need.tenant}")
    return _by_grants(role, need, grants.namespace, rules)


def _by_grants(role: str, need: Need, grants: NamespaceGrants, rules: RightsRules) -> RightsDecision:
    if need.right is Right.USE_NAMESPACE:
        given: tuple[RoleActions, ...] = (grants.roles,)
    elif need.topic is not None:
        given = grants.on_topic(need.topic)
    else:
        return RightsDecision(False, f"{need.right.name} names no topic")
    if need.right is Right.CONSUME and need.subscription:
        only = grants.subscriptions.get(need.subscription)
        if only and role not in only:
            return RightsDecision(
                False, f"{role!r} is not among the roles of subscription {need.subscription}"
            )
        if grants.prefixed and not need.subscription.startswith(role):
            return RightsDecision(False, f"subscription {need.subscription} does not begin with {role!r}")
    wanted = _ACTIONS[need.right]
    for action in _actions(role, given, wildcards=rules.wildcards):
        if action in wanted:
            return RightsDecision(True, f"{role!r} was granted {action}")
    return RightsDecision(False, f"{role!r} was not granted {' or '.join(wanted)}")


_ACTIONS = {
    Right.PRODUCE: (PRODUCE,),
    Right.CONSUME: (CONSUME,),
    Right.LOOK_UP: (PRODUCE, CONSUME),
    Right.USE_NAMESPACE: (PRODUCE, CONSUME),
}


def _actions(role: str, given: Iterable[RoleActions], *, wildcards: bool) -> Iterable[str]:
    for grants in given:
        yield from grants.get(role, ())
        if wildcards:
            for pattern, actions in grants.items():
                if matches(pattern, role):
                    yield from actions


def matches(pattern: str, role: str) -> bool:
    """Return whether a granted `prefix*` or `*suffix` means the role."""
    begins = pattern.endswith("*") and role.startswith(pattern[:-1])
    return begins or (pattern.startswith("*") and role.endswith(pattern[1:]))
