"""`/admin/v2/schemas`: the schemas of topics, and the policies of namespaces and topics about schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from anabranch.admin.answers import MalformedBodyError, as_json
from anabranch.admin.calls import NUMBER_MAX, Call, route
from anabranch.admin.permissions import topic_exists
from anabranch.admin.quotas import store_policy
from anabranch.broker.catalog.schemas import definition_in
from anabranch.errors import IncompatibleSchemaError, NotFoundError, TopicNotFoundError
from anabranch.metadata.schemas import StoredSchema
from anabranch.model.names import TopicName
from anabranch.protocol.limits import SCHEMA_BYTES_MAX
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import pairs
from anabranch.schemas.definitions import KEY_VALUE, KINDS, REST_NAMES, joined, split_text
from anabranch.schemas.policies import (
    AUTO_UPDATE,
    ENFORCED,
    FIELDS,
    OLD_STRATEGY,
    STRATEGY,
    UNDEFINED,
    check_schema_policy,
    policy_of,
)


class PostedSchema(msgspec.Struct):
    """The body of a call that adds or compares a schema, in Pulsar's form."""

    type: str
    schema: str = ""
    properties: dict[str, str] = {}


async def get_newest(call: Call) -> Any:
    return _shown(*await _found(call, None))


async def get_version(call: Call) -> Any:
    number = call.number_part("version")
    if not 0 <= number <= NUMBER_MAX:
        raise NotFoundError(f"version {number} cannot exist")
    return _shown(*await _found(call, number.to_bytes(8, "big")))


async def get_all(call: Call) -> Any:
    topic = await _topic(call)
    return {"getSchemaResponses": [_shown(*found) for found in await call.broker.schemas.all(topic)]}


async def add(call: Call) -> Any:
    topic, schema = await _topic(call), await _posted(call)
    registry = call.broker.schemas
    policy = await registry.policy(topic)
    number = await registry.register(topic, schema, call.broker.clock.wall_ms(), policy)
    return {"version": int.from_bytes(number, "big")}


async def find_version(call: Call) -> Any:
    """The version of a schema; -1 if the topic does not have it."""
    number = await call.broker.schemas.number_of(await _topic(call), await _posted(call))
    return {"version": -1 if number is None else number}


async def compare(call: Call) -> Any:
    """Whether a schema may become the next version."""
    topic, schema = await _topic(call), await _posted(call)
    registry = call.broker.schemas
    policy = await registry.policy(topic)
    answer: dict[str, Any] = {"compatibility": True, "schemaCompatibilityStrategy": policy.strategy}
    try:
        await registry.check_next(topic, schema, policy)
    except IncompatibleSchemaError as error:
        answer |= {"compatibility": False, "reason": str(error)}
    return answer


async def delete(call: Call) -> Any:
    """Begin anew without a schema; `force` also deletes what older messages were written with."""
    topic = await _topic(call)
    number = await call.topics.schemas.retire(topic, forget=call.flag("force"))
    return {"version": -1 if number is None else number}


async def _topic(call: Call) -> TopicName:
    name = call.topic("persistent")
    if not await topic_exists(call, name):
        raise TopicNotFoundError(f"topic {name.local} does not exist in {name.namespace_name}")
    return name


async def _found(call: Call, version: bytes | None) -> tuple[StoredSchema, bytes]:
    topic = await _topic(call)
    found = await call.broker.schemas.get(topic, version)
    if found is None:
        raise NotFoundError(f"{topic} has no such schema")
    return found


def _shown(schema: StoredSchema, version: bytes) -> dict[str, Any]:
    definition = definition_in(schema)
    text = schema.data.decode(errors="replace")
    if definition.kind == KEY_VALUE:
        text = split_text(definition)
    return {
        "version": int.from_bytes(version, "big"),
        "type": REST_NAMES.get(definition.kind, definition.kind),
        "timestamp": schema.timestamp,
        "data": text,
        "properties": schema.properties,
    }


async def _posted(call: Call) -> pb.Schema:
    body = await call.body(PostedSchema)
    if body is None:
        raise MalformedBodyError('the body is {"type": ..., "schema": ..., "properties": {}}')
    kind = KINDS.get(body.type.upper())
    if kind is None:
        raise MalformedBodyError(f"type must be one of {', '.join(KINDS)}, not {body.type!r}")
    data = body.schema.encode()
    if kind == KEY_VALUE:
        data = joined(data)
    if len(data) > SCHEMA_BYTES_MAX:
        raise MalformedBodyError(f"a schema has at most {SCHEMA_BYTES_MAX} bytes")
    return pb.Schema(
        name=call.part("topic"),
        schema_data=data,
        type=pb.Schema.Type.Value(kind),
        properties=pairs(body.properties),
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
        if call.flag("applied"):
            return as_json(_applied(self._name, call, {}, policies))
        missing = {STRATEGY: UNDEFINED, AUTO_UPDATE: None, ENFORCED: False}[self._name]
        return as_json(missing if found is None else found)

    async def set(self, call: Call) -> None:
        await store_policy(call, FIELDS[self._name], check_schema_policy(self._name, await call.body(object)))

    async def remove(self, call: Call) -> None:
        await store_policy(call, FIELDS[self._name], None)


class _TopicPolicy:
    """A policy of topics about schemas."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def get(self, call: Call) -> Any:
        topic = await _topic(call)
        index = await call.topics.schemas.load_index(topic)
        own: Mapping[str, Any] = {} if index is None else index.policies
        if call.flag("applied"):
            policies = (await call.topics.namespaces.load_namespace(call.namespace())).policies
            return as_json(_applied(self._name, call, own, policies))
        return as_json(own.get(self._name))

    async def set(self, call: Call) -> None:
        topic, value = await _topic(call), check_schema_policy(self._name, await call.body(object))
        await call.topics.schemas.set_policy(topic, self._name, value)

    async def remove(self, call: Call) -> None:
        await call.topics.schemas.set_policy(await _topic(call), self._name, None)


def _applied(name: str, call: Call, own: Mapping[str, Any], policies: Mapping[str, Any]) -> Any:
    policy = policy_of(own, policies, call.broker.schemas.default)
    return {STRATEGY: policy.strategy, AUTO_UPDATE: policy.auto_update, ENFORCED: policy.enforced}[name]


SCHEMAS = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPICS = (
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}",
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}",
)
_POLICIES: list[tuple[str, _NamespacePolicy | _TopicPolicy]] = [
    *((f"{NAMESPACE}/{name}", _NamespacePolicy(name)) for name in FIELDS),
    *((f"{path}/{name}", _TopicPolicy(name)) for path in TOPICS for name in (STRATEGY, ENFORCED)),
]

ROUTES = [
    route("GET", SCHEMAS + "/schema", get_newest),
    route("GET", SCHEMAS + "/schema/{version}", get_version),
    route("GET", SCHEMAS + "/schemas", get_all),
    route("POST", SCHEMAS + "/schema", add),
    route("DELETE", SCHEMAS + "/schema", delete),
    route("POST", SCHEMAS + "/compatibility", compare),
    route("POST", SCHEMAS + "/version", find_version),
    *(route("GET", path, policy.get) for path, policy in _POLICIES),
    *(route("PUT", path, policy.set) for path, policy in _POLICIES),
    *(route("POST", path, policy.set) for path, policy in _POLICIES),
    *(route("DELETE", path, policy.remove) for path, policy in _POLICIES),
]
