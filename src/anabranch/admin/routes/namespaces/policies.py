"""Policies of namespaces and topics over HTTP, with Pulsar's paths; each is enforced, or refused.

The table in `model/policies/table.py` lists them. This module must not know how a policy is enforced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import as_json
from anabranch.admin.http.calls import Call
from anabranch.admin.routes.namespaces.permissions import topic_exists
from anabranch.admin.routes.namespaces.policy_forms import MODES, type_of
from anabranch.errors import InvalidConfigurationError, NotAllowedError, NotFoundError, TopicNotFoundError
from anabranch.metadata.records import NamespaceRecord
from anabranch.model.names import Domain, TopicName
from anabranch.model.policies.backlog import check_quota, check_type
from anabranch.model.policies.of_topics import policy_of_topic, topic_key, with_topic_policy
from anabranch.model.policies.quotas import NAMESPACE_RATES
from anabranch.model.policies.table import POLICIES, PolicyRow, refuse
from anabranch.rights.grants import SUBSCRIPTION_MODE, SUBSCRIPTION_MODES
from anabranch.rights.rows import ADMIN, CLASSIC_ADMIN, SCALABLE_ADMIN

BACKLOG_QUOTAS = "backlogQuotaMap"

Change = Callable[[Any], Any]
"""Takes the stored value, None if there is none, and returns the next one, None to remove it."""


class _OfNamespace:
    """The place of a policy in the record of its namespace."""

    def __init__(self, name: str, line: PolicyRow) -> None:
        self.shown = name
        self._name = name
        self._field = line.field

    async def load(self, call: Call) -> Any:
        policies = (await call.topics.namespaces.load_namespace(call.namespace())).policies
        found = policies.get(self._field)
        if self._name in NAMESPACE_RATES:
            found = (found or {}).get(call.broker.config.cluster)
        # As in Pulsar, of all numbers only this one is shown as 0 while it is not set.
        return 0 if found is None and self._name == "maxTopicsPerNamespace" else found

    async def change(self, call: Call, change: Change) -> None:
        by_cluster, cluster = self._name in NAMESPACE_RATES, call.broker.config.cluster

        def next_record(record: NamespaceRecord) -> NamespaceRecord:
            policies = {name: kept for name, kept in record.policies.items() if name != self._field}
            value = change(record.policies.get(self._field))
            if value is not None:
                policies[self._field] = {cluster: value} if by_cluster else value
            return msgspec.structs.replace(record, policies=policies)

        await call.topics.namespaces.update_namespace(call.namespace(), next_record)


class _OfTopic:
    """The place of a policy of the topics of one scheme, in the record of their namespace."""

    def __init__(self, name: str, line: PolicyRow, domain: Domain) -> None:
        self.shown = line.topic_name
        self._of_namespace = _OfNamespace(name, line) if line.field else None
        self._domain = domain
        self._refusal = line.scalable if domain == "topic" else ""

    async def load(self, call: Call) -> Any:
        """Return the policy of the topic; with `applied`, that of its namespace if the topic has none."""
        topic = await self._topic(call)
        policies = (await call.topics.namespaces.load_namespace(call.namespace())).policies
        found = policy_of_topic(policies, topic_key(topic), self.shown)
        if found is None and call.flag("applied") and self._of_namespace is not None:
            return await self._of_namespace.load(call)
        return found

    async def change(self, call: Call, change: Change) -> None:
        topic = topic_key(await self._topic(call))

        def next_record(record: NamespaceRecord) -> NamespaceRecord:
            value = change(policy_of_topic(record.policies, topic, self.shown))
            policies = with_topic_policy(record.policies, topic, self.shown, value)
            return msgspec.structs.replace(record, policies=policies)

        await call.topics.namespaces.update_namespace(call.namespace(), next_record)

    async def _topic(self, call: Call) -> TopicName:
        if self._refusal:
            raise NotAllowedError(self._refusal)
        name = call.topic(self._domain)
        if not await topic_exists(call, name):
            raise TopicNotFoundError(f"{name} does not exist")
        return name


class _Policy:
    """The calls of one policy at one place."""

    def __init__(self, place: _OfNamespace | _OfTopic, line: PolicyRow, kind: Any) -> None:
        """`kind` is the type of the values, as the description of the API has it."""
        self._place = place
        self._check = line.check
        self._kind = kind

    async def get(self, call: Call) -> Any:
        found = await self._place.load(call)
        return None if found is None else as_json(found)

    async def set(self, call: Call) -> None:
        given = await call.body(object)
        if given is None and self._place.shown == "messageTTL":
            # Pulsar's clients send the time of a topic as a parameter.
            given = call.number("messageTTL")
        value = self._check(self._place.shown, given)
        try:
            # A value of another form could not be shown.
            msgspec.convert(value, self._kind)
        except msgspec.ValidationError as error:
            raise InvalidConfigurationError(f"{self._place.shown} has the wrong form: {error}") from error
        await self._place.change(call, lambda _: value)

    async def remove(self, call: Call) -> None:
        await self._place.change(call, lambda _: None)


class _BacklogQuotas(_Policy):
    """The quotas of all types are shown together, and each is set and removed by itself."""

    async def get(self, call: Call) -> Any:
        return as_json(await self._place.load(call) or {})

    async def set(self, call: Call) -> None:
        kind = check_type(call.query("backlogQuotaType"))
        quota = check_quota(kind, await call.body(object))
        await self._place.change(call, lambda known: {**(known or {}), kind: quota})

    async def remove(self, call: Call) -> None:
        kind = check_type(call.query("backlogQuotaType"))

        def change(known: Any) -> Any:
            return {other: quota for other, quota in (known or {}).items() if other != kind} or None

        await self._place.change(call, change)


class _AuthMode(_Policy):
    """How the names of subscriptions are bound to roles; a change is in the audit log."""

    async def set(self, call: Call) -> None:
        await super().set(call)
        call.note_change(f"subscriptions have the mode {await call.body(object)}")

    async def remove(self, call: Call) -> None:
        await super().remove(call)
        call.note_change("subscriptions have the mode None")


def check_mode(name: str, value: object) -> object:
    """Return the mode of subscriptions to store; InvalidConfigurationError for an unknown one."""
    if value not in (None, *SUBSCRIPTION_MODES):
        raise InvalidConfigurationError(f"the body must be one of {', '.join(SUBSCRIPTION_MODES)}")
    return value


_AUTH_MODE = PolicyRow(SUBSCRIPTION_MODE, check_mode)


class PolicyRoutes:
    """All policies of namespaces, or of the topics of one scheme, by their names in the path."""

    def __init__(self, policies: dict[str, _Policy]) -> None:
        quotas = policies[BACKLOG_QUOTAS]
        self._policies = {**policies, "backlogQuota": quotas}

    def _policy(self, call: Call) -> _Policy:
        name = call.part("policy")
        found = self._policies.get(name)
        if found is not None:
            return found
        refusal = refuse(name)
        if refusal is not None:
            raise refusal
        raise NotFoundError(
            f"{call.path} is not offered: {name!r} is neither a call nor a policy here; policies are "
            + ", ".join(sorted(self._policies))
        )

    async def get(self, call: Call) -> Any:
        return await self._policy(call).get(call)

    async def set(self, call: Call) -> None:
        await self._policy(call).set(call)

    async def remove(self, call: Call) -> None:
        await self._policy(call).remove(call)


def _policy(name: str, place: _OfNamespace | _OfTopic, line: PolicyRow) -> _Policy:
    return (_BacklogQuotas if place.shown == BACKLOG_QUOTAS else _Policy)(place, line, type_of(name))


def _of_topics(domain: Domain) -> PolicyRoutes:
    lines = [(name, _OfTopic(name, line, domain), line) for name, line in POLICIES.items() if line.topic_name]
    return PolicyRoutes({place.shown: _policy(name, place, line) for name, place, line in lines})


def _of_namespaces() -> PolicyRoutes:
    lines = [(name, _OfNamespace(name, line), line) for name, line in POLICIES.items() if line.field]
    found = {place.shown: _policy(name, place, line) for name, place, line in lines}
    mode = _AuthMode(_OfNamespace("subscriptionAuthMode", _AUTH_MODE), _AUTH_MODE, MODES | None)
    return PolicyRoutes({**found, "subscriptionAuthMode": mode})


async def refuse_rate(call: Call) -> None:
    """Refuse a rate of one subscription: each subscription of a topic has the same."""
    raise NotAllowedError(
        f"{call.path} is not supported: a subscription has no rate of its own; set "
        "subscriptionDispatchRate, which holds for each subscription of the topic"
    )


_PLACES = (
    ("/admin/v2/namespaces/{tenant}/{namespace}/{policy}", ADMIN, _of_namespaces()),
    ("/admin/v2/persistent/{tenant}/{namespace}/{topic}/{policy}", CLASSIC_ADMIN, _of_topics("persistent")),
    ("/admin/v2/scalable/{tenant}/{namespace}/{topic}/{policy}", SCALABLE_ADMIN, _of_topics("topic")),
)

SUBSCRIPTION_RATE = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/{subName}/dispatchRate"
_QUOTA_TYPE = {"backlogQuotaType": str}
_PARAMETERS = {**_QUOTA_TYPE, "messageTTL": int}

ENDPOINTS = [
    *(
        AdminEndpoint("GET", path, right, place.get, query={"applied": bool}, client="policy")
        for path, right, place in _PLACES
    ),
    *(
        AdminEndpoint("POST", path, right, place.set, body=Any, query=_PARAMETERS, client="set_policy")
        for path, right, place in _PLACES
    ),
    *(
        AdminEndpoint("PUT", path, right, place.set, body=Any, query=_PARAMETERS)
        for path, right, place in _PLACES
    ),
    *(
        AdminEndpoint("DELETE", path, right, place.remove, query=_QUOTA_TYPE, client="remove_policy")
        for path, right, place in _PLACES
    ),
    *(
        AdminEndpoint(method, SUBSCRIPTION_RATE, CLASSIC_ADMIN, refuse_rate)
        for method in ("GET", "POST", "DELETE")
    ),
]
"""They match any last part of a path, so they come after all other endpoints."""
