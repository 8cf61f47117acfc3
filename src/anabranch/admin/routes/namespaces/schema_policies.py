"""The policies of namespaces and topics about schemas, with Pulsar's paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import as_json
from anabranch.admin.http.calls import Call
from anabranch.admin.routes.namespaces.schemas import schema_topic
from anabranch.metadata.records import NamespaceRecord
from anabranch.rights.rows import ADMIN, CLASSIC_ADMIN, SCALABLE_ADMIN, RightRow
from anabranch.schemas.compatibility import STRATEGIES
from anabranch.schemas.policies import (
    AUTO_UPDATE,
    ENFORCED,
    FIELDS,
    OLD_STRATEGIES,
    OLD_STRATEGY,
    STRATEGY,
    UNDEFINED,
    check_schema_policy,
    policy_of,
)


class _NamespacePolicy:
    """A policy of namespaces about schemas."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def get(self, call: Call) -> Any:
        policies = (await call.topics.namespaces.load_namespace(call.namespace())).policies
        found = policies.get(FIELDS[self._name])
        if self._name == OLD_STRATEGY:
            return as_json(found)
        if call.flag("applied") or self._name == AUTO_UPDATE:
            # As in Pulsar, this flag is always shown as it applies; Java's admin client fails on null.
            return as_json(_applied(self._name, call, {}, policies))
        missing = {STRATEGY: UNDEFINED, ENFORCED: False}[self._name]
        return as_json(missing if found is None else found)

    async def set(self, call: Call) -> None:
        await self._store(call, check_schema_policy(self._name, await call.body(object)))

    async def remove(self, call: Call) -> None:
        await self._store(call, None)

    async def _store(self, call: Call, value: object) -> None:
        field = FIELDS[self._name]

        def change(record: NamespaceRecord) -> NamespaceRecord:
            policies = {name: kept for name, kept in record.policies.items() if name != field}
            if value is not None:
                policies[field] = value
            return msgspec.structs.replace(record, policies=policies)

        await call.topics.namespaces.update_namespace(call.namespace(), change)


class _TopicPolicy:
    """A policy of topics about schemas."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def get(self, call: Call) -> Any:
        topic = await schema_topic(call)
        index = await call.topics.schemas.load_index(topic)
        own: Mapping[str, Any] = {} if index is None else index.policies
        if call.flag("applied"):
            policies = (await call.topics.namespaces.load_namespace(call.namespace())).policies
            return as_json(_applied(self._name, call, own, policies))
        # Java's admin client fails on a flag that is null.
        return as_json(own.get(self._name, False if self._name == ENFORCED else None))

    async def set(self, call: Call) -> None:
        topic, value = await schema_topic(call), check_schema_policy(self._name, await call.body(object))
        await call.topics.schemas.set_policy(topic, self._name, value)

    async def remove(self, call: Call) -> None:
        await call.topics.schemas.set_policy(await schema_topic(call), self._name, None)


def _applied(name: str, call: Call, own: Mapping[str, Any], policies: Mapping[str, Any]) -> Any:
    policy = policy_of(own, policies, call.broker.schemas.default)
    return {STRATEGY: policy.strategy, AUTO_UPDATE: policy.auto_update, ENFORCED: policy.enforced}[name]


NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_TOPICS = (
    ("/admin/v2/persistent/{tenant}/{namespace}/{topic}", CLASSIC_ADMIN),
    ("/admin/v2/scalable/{tenant}/{namespace}/{topic}", SCALABLE_ADMIN),
)
_POLICIES: list[tuple[str, RightRow, _NamespacePolicy | _TopicPolicy]] = [
    *((f"{NAMESPACE}/{name}", ADMIN, _NamespacePolicy(name)) for name in FIELDS),
    *(
        (f"{path}/{name}", right, _TopicPolicy(name))
        for path, right in _TOPICS
        for name in (STRATEGY, ENFORCED)
    ),
]

_TYPES: Mapping[str, Any] = {
    STRATEGY: Literal[(*STRATEGIES, UNDEFINED)],
    AUTO_UPDATE: bool,
    ENFORCED: bool,
    OLD_STRATEGY: Literal[OLD_STRATEGIES],
}


def _type_of(path: str) -> Any:
    return _TYPES[path.rpartition("/")[2]]


ENDPOINTS = [
    *(
        AdminEndpoint("GET", path, right, policy.get, query={"applied": bool}, returns=_type_of(path) | None)
        for path, right, policy in _POLICIES
    ),
    *(
        AdminEndpoint("PUT", path, right, policy.set, body=_type_of(path))
        for path, right, policy in _POLICIES
    ),
    *(
        AdminEndpoint("POST", path, right, policy.set, body=_type_of(path))
        for path, right, policy in _POLICIES
    ),
    *(AdminEndpoint("DELETE", path, right, policy.remove) for path, right, policy in _POLICIES),
]
