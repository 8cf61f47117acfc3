"""Pulsar's paths for the grants on namespaces, topics and subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.calls import Call
from anabranch.admin.models.namespaces import AuthPolicies
from anabranch.admin.models.tenants import TopicPermissions
from anabranch.errors import InvalidConfigurationError, NotFoundError, TopicNotFoundError
from anabranch.metadata.records import NamespaceRecord
from anabranch.model.names import Domain, TopicName, validate_subscription
from anabranch.model.policies.of_topics import topic_key, topic_policies, without_topic_policies
from anabranch.rights import grants
from anabranch.rights.callers import ROLE_CHARACTERS_MAX, is_role
from anabranch.rights.grants import ACTIONS, NamespaceGrants, RoleActions
from anabranch.rights.needs import Right, on_topic
from anabranch.rights.rows import ADMIN, AUTHENTICATED, CLASSIC_ADMIN, SCALABLE_ADMIN

Policies = dict[str, Any]


async def show_namespace(call: Call) -> dict[str, list[str]]:
    return _shown(await _grants(call), [])


async def grant_on_namespace(call: Call) -> None:
    role, actions = checked_role(call.part("role")), await _actions(call)
    await _change(call, lambda policies: grants.with_role(policies, role, actions))
    call.note_change(f"granted {role!r} {_words(actions)}")


async def revoke_on_namespace(call: Call) -> None:
    role = call.part("role")
    await _change(call, lambda policies: grants.with_role(policies, role, None))
    call.note_change(f"revoked all of {role!r}")


async def show_subscriptions(call: Call) -> dict[str, list[str]]:
    given = (await _grants(call)).subscriptions
    return {name: sorted(roles) for name, roles in sorted(given.items())}


async def reserve_subscription(call: Call) -> None:
    subscription = validate_subscription(call.part("subscription"))
    roles = sorted({checked_role(role) for role in await call.body(list[str]) or ()})
    await _change(call, lambda policies: grants.with_subscription_roles(policies, subscription, roles))
    call.note_change(f"reserved subscription {subscription!r} for {_words(roles)}")


async def revoke_on_subscription(call: Call) -> None:
    namespace, subscription, role = call.namespace(), call.part("subscription"), call.part("role")

    def change(policies: Policies) -> Policies:
        known = grants.grants_of(namespace, policies).subscriptions.get(subscription)
        if known is None:
            raise NotFoundError(f"subscription {subscription} is not reserved for any role")
        return grants.with_subscription_roles(policies, subscription, sorted(known - {role}))

    await _change(call, change)
    call.note_change(f"revoked subscription {subscription!r} of {role!r}")


async def show_classic(call: Call) -> dict[str, list[str]]:
    return await _show_topic(call, call.domain)


async def show_scalable(call: Call) -> dict[str, list[str]]:
    return await _show_topic(call, "topic")


async def _show_topic(call: Call, domain: Domain) -> dict[str, list[str]]:
    """Return the grants that count on a topic: its own and those of its namespace, as Pulsar shows them."""
    found = await _grants(call)
    return _shown(found, found.on_topic(call.topic(domain))[1:])


async def grant_on_classic(call: Call) -> None:
    await _grant_on_topic(call, call.domain)


async def grant_on_scalable(call: Call) -> None:
    await _grant_on_topic(call, "topic")


async def _grant_on_topic(call: Call, domain: Domain) -> None:
    name, role, actions = call.topic(domain), checked_role(call.part("role")), await _actions(call)
    if not call.broker.config.grants_on_missing_topics and not await topic_exists(call, name):
        raise TopicNotFoundError(f"{name} does not exist; create it before you grant rights on it")
    await _change(call, lambda policies: grants.with_topic_role(policies, name, role, actions))
    call.note_change(f"granted {role!r} {_words(actions)}")


async def revoke_on_classic(call: Call) -> None:
    await _revoke_on_topic(call, call.domain)


async def revoke_on_scalable(call: Call) -> None:
    await _revoke_on_topic(call, "topic")


async def _revoke_on_topic(call: Call, domain: Domain) -> None:
    name, role = call.topic(domain), call.part("role")
    await _change(call, lambda policies: grants.with_topic_role(policies, name, role, None))
    call.note_change(f"revoked all of {role!r}")


async def grant_on_topics(call: Call) -> None:
    """Grant actions on several topics; nothing is granted unless the caller may grant all of it."""
    given = await _on_topics(call)
    for one, name in given:
        checked_role(one.role)
        check_actions(one.actions)
        if not call.broker.config.grants_on_missing_topics and not await topic_exists(call, name):
            raise TopicNotFoundError(f"{name} does not exist; create it before you grant rights on it")
    for one, name in given:
        actions = check_actions(one.actions)
        await _change_on_topic(call, name, partial(grants.with_topic_role, role=one.role, actions=actions))
    call.note_change(
        "; ".join(f"granted {one.role!r} {_words(one.actions)} on {name}" for one, name in given)
    )


async def revoke_on_topics(call: Call) -> None:
    """End all grants of roles on several topics."""
    given = await _on_topics(call)
    for one, name in given:
        await _change_on_topic(call, name, partial(grants.with_topic_role, role=one.role, actions=None))
    call.note_change("; ".join(f"revoked all of {one.role!r} on {name}" for one, name in given))


async def _on_topics(call: Call) -> list[tuple[TopicPermissions, TopicName]]:
    """Return the changes of the body with their topics, after the rights of the caller were checked."""
    body = await call.body(list[TopicPermissions]) or []
    given = [(one, TopicName.parse(one.topic)) for one in body]
    needs = [on_topic(Right.TENANT_ADMIN, name) for _, name in given]
    if (asking := call.broker.authorizer.admit(call.caller, needs)) is not None:
        await asking
    return given


async def _change_on_topic(call: Call, name: TopicName, change: Callable[..., Policies]) -> None:
    await call.topics.namespaces.update_namespace(
        name.namespace_name,
        lambda record: msgspec.structs.replace(record, policies=change(record.policies, name)),
    )


async def topic_exists(call: Call, name: TopicName) -> bool:
    """Return whether a topic of this name exists in any scheme: grants are the same in all."""
    # Only names of scalable topics hold slashes.
    schemes: Sequence[Domain] = ("topic",) if "/" in name.local else ("persistent", "non-persistent")
    for classic in [replace(one, domain=to) for one in (name, name.partitioned_topic) for to in schemes]:
        # The record of a migrated topic outlives the scalable topic that replaced it.
        record = await call.topics.find_classic(classic)
        if record is not None and not record.migrated:
            return True
    found = await call.topics.find(name.topic)
    return found is not None and not found.deleted


async def forget_topic(call: Call, name: TopicName) -> None:
    """End grants on, and policies of, a deleted topic, so that the next topic of its name has none."""
    if await topic_exists(call, name):
        return

    def change(record: NamespaceRecord) -> NamespaceRecord:
        policies = without_topic_policies(grants.without_topic(record.policies, name), topic_key(name))
        before = grants.grants_of(name.namespace_name, record.policies)
        unchanged = before == grants.grants_of(name.namespace_name, policies)
        unchanged = unchanged and topic_policies(record.policies) == topic_policies(policies)
        return record if unchanged else msgspec.structs.replace(record, policies=policies)

    with suppress(NotFoundError):
        await call.topics.namespaces.update_namespace(name.namespace_name, change)


def check_auth_policies(namespace: str, policies: Policies) -> None:
    """Check the grants among the policies of a new namespace; raises InvalidConfigurationError."""
    try:
        given = msgspec.convert(policies.get(grants.AUTH_POLICIES) or {}, AuthPolicies)
    except msgspec.ValidationError as error:
        raise InvalidConfigurationError(f"{grants.AUTH_POLICIES} has the wrong form: {error}") from error
    for role, actions in given.namespace_auth.items():
        checked_role(role)
        check_actions(actions)
    for topic, roles in given.destination_auth.items():
        if TopicName.parse(topic).namespace_name != namespace:
            raise InvalidConfigurationError(f"{topic} is not a topic of {namespace}")
        for role, actions in roles.items():
            checked_role(role)
            check_actions(actions)
    for subscription, names in given.subscription_auth_roles.items():
        validate_subscription(subscription)
        for role in names:
            checked_role(role)


async def _grants(call: Call) -> NamespaceGrants:
    record = await call.topics.namespaces.load_namespace(call.namespace())
    return grants.grants_of(call.namespace(), record.policies)


async def _change(call: Call, change: Callable[[Policies], Policies]) -> None:
    await call.topics.namespaces.update_namespace(
        call.namespace(), lambda record: msgspec.structs.replace(record, policies=change(record.policies))
    )


def _shown(found: NamespaceGrants, on_topic: Iterable[RoleActions]) -> dict[str, list[str]]:
    shown: dict[str, set[str]] = {}
    for given in (found.roles, *on_topic):
        for role, actions in given.items():
            shown.setdefault(role, set()).update(actions)
    return {role: sorted(shown[role]) for role in sorted(shown)}


def checked_role(text: str) -> str:
    """Return the role; raises InvalidConfigurationError if no caller can have it."""
    if not is_role(text):
        raise InvalidConfigurationError(
            f"{text!r} cannot be a role; use 1 to {ROLE_CHARACTERS_MAX} printable characters"
        )
    return text


async def _actions(call: Call) -> list[str]:
    given = await call.body(list[str])
    if given is None:
        raise InvalidConfigurationError(f"the body must be a list of some of {', '.join(ACTIONS)}")
    return check_actions(given)


def check_actions(given: Iterable[str]) -> list[str]:
    """Return the actions in order; raises InvalidConfigurationError."""
    wrong = sorted(set(given) - set(ACTIONS))
    if wrong:
        raise InvalidConfigurationError(f"there is no action {wrong[0]!r}; use some of {', '.join(ACTIONS)}")
    return sorted(set(given))


def _words(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
CLASSIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions"
SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}/{topic}/permissions"

ALL_NAMESPACES = "/admin/v2/namespaces"

ENDPOINTS = [
    # The bodies of these two name the topics, and the handlers check that the caller is an admin of each.
    AdminEndpoint(
        "POST",
        ALL_NAMESPACES + "/grantPermissionsOnTopics",
        AUTHENTICATED,
        grant_on_topics,
        body=list[TopicPermissions],
        client="grant_on_topics",
    ),
    AdminEndpoint(
        "POST",
        ALL_NAMESPACES + "/revokePermissionsOnTopics",
        AUTHENTICATED,
        revoke_on_topics,
        body=list[TopicPermissions],
        client="revoke_on_topics",
    ),
    AdminEndpoint("GET", NAMESPACE, ADMIN, show_namespace, client="permissions"),
    AdminEndpoint("GET", NAMESPACE + "/subscription", ADMIN, show_subscriptions, client="subscription_roles"),
    AdminEndpoint(
        "POST",
        NAMESPACE + "/subscription/{subscription}",
        ADMIN,
        reserve_subscription,
        body=list[str],
        client="reserve_subscription",
    ),
    AdminEndpoint("POST", NAMESPACE + "/{role}", ADMIN, grant_on_namespace, body=list[str], client="grant"),
    AdminEndpoint("DELETE", NAMESPACE + "/{role}", ADMIN, revoke_on_namespace, client="revoke"),
    AdminEndpoint("DELETE", NAMESPACE + "/{subscription}/{role}", ADMIN, revoke_on_subscription),
    AdminEndpoint("GET", CLASSIC, CLASSIC_ADMIN, show_classic, client="permissions"),
    AdminEndpoint(
        "POST", CLASSIC + "/{role}", CLASSIC_ADMIN, grant_on_classic, body=list[str], client="grant"
    ),
    AdminEndpoint("DELETE", CLASSIC + "/{role}", CLASSIC_ADMIN, revoke_on_classic, client="revoke"),
    AdminEndpoint("GET", SCALABLE, SCALABLE_ADMIN, show_scalable, client="permissions"),
    AdminEndpoint(
        "POST", SCALABLE + "/{role}", SCALABLE_ADMIN, grant_on_scalable, body=list[str], client="grant"
    ),
    AdminEndpoint("DELETE", SCALABLE + "/{role}", SCALABLE_ADMIN, revoke_on_scalable, client="revoke"),
]
