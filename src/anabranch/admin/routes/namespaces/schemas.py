"""`/admin/v2/schemas`: the schemas of topics."""

from __future__ import annotations

from anabranch.admin.endpoints import AdminEndpoint
from anabranch.admin.http.answers import MalformedBodyError
from anabranch.admin.http.calls import NUMBER_MAX, Call
from anabranch.admin.models.schemas import (
    AllSchemas,
    PostedSchema,
    SchemaCompatibility,
    SchemaInfo,
    SchemaVersion,
)
from anabranch.admin.routes.namespaces.permissions import topic_exists
from anabranch.broker.catalog.schemas import definition_in
from anabranch.errors import IncompatibleSchemaError, NotFoundError, TopicNotFoundError
from anabranch.metadata.schemas import StoredSchema
from anabranch.model.names import TopicName
from anabranch.protocol.limits import SCHEMA_BYTES_MAX
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import pairs
from anabranch.rights.rows import NAMED_ADMIN, NAMED_LOOK, name_in
from anabranch.schemas.definitions import KEY_VALUE, KINDS, REST_NAMES, joined, split_text


async def get_newest(call: Call) -> SchemaInfo:
    return _shown(*await _found(call, None))


async def get_version(call: Call) -> SchemaInfo:
    number = call.number_part("version")
    if not 0 <= number <= NUMBER_MAX:
        raise NotFoundError(f"version {number} cannot exist")
    return _shown(*await _found(call, number.to_bytes(8, "big")))


async def get_all(call: Call) -> AllSchemas:
    found = await call.broker.schemas.all(await schema_topic(call))
    return AllSchemas(get_schema_responses=[_shown(*one) for one in found])


async def add(call: Call) -> SchemaVersion:
    """Add a schema to a topic unless it has it."""
    topic, schema = await schema_topic(call), await _posted(call)
    registry = call.broker.schemas
    policy = await registry.policy(topic)
    number = await registry.register(topic, schema, call.broker.clock.wall_ms(), policy)
    return SchemaVersion(version=int.from_bytes(number, "big"))


async def find_version(call: Call) -> SchemaVersion:
    """The version of a schema; -1 if the topic does not have it."""
    number = await call.broker.schemas.number_of(await schema_topic(call), await _posted(call))
    return SchemaVersion(version=-1 if number is None else number)


async def compare(call: Call) -> SchemaCompatibility:
    """Whether a schema may become the next version."""
    topic, schema = await schema_topic(call), await _posted(call)
    registry = call.broker.schemas
    policy = await registry.policy(topic)
    reason = ""
    try:
        await registry.check_next(topic, schema, policy)
    except IncompatibleSchemaError as error:
        reason = str(error)
    return SchemaCompatibility(
        compatibility=not reason, schema_compatibility_strategy=policy.strategy, reason=reason
    )


async def delete(call: Call) -> SchemaVersion:
    """Delete the schema of a topic; `force` also deletes the versions that wrote older messages."""
    topic = await schema_topic(call)
    number = await call.topics.schemas.retire(topic, forget=call.flag("force"))
    return SchemaVersion(version=-1 if number is None else number)


async def schema_topic(call: Call) -> TopicName:
    """Return the topic in the path, which must exist in some scheme: all schemes share its schemas."""
    name = name_in(call.part)
    if not await topic_exists(call, name):
        raise TopicNotFoundError(f"topic {name.local} does not exist in {name.namespace_name}")
    return name


async def _found(call: Call, version: bytes | None) -> tuple[StoredSchema, bytes]:
    topic = await schema_topic(call)
    found = await call.broker.schemas.get(topic, version)
    if found is None:
        wanted = "schema" if version is None else f"version {int.from_bytes(version, 'big')} of its schema"
        raise NotFoundError(f"topic {topic.local} in {topic.namespace_name} has no {wanted}")
    return found


def _shown(schema: StoredSchema, version: bytes) -> SchemaInfo:
    definition = definition_in(schema)
    text = schema.data.decode(errors="replace")
    if definition.kind == KEY_VALUE:
        text = split_text(definition)
    return SchemaInfo(
        version=int.from_bytes(version, "big"),
        type=REST_NAMES.get(definition.kind, definition.kind),
        timestamp=schema.timestamp,
        data=text,
        properties=schema.properties,
    )


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


SCHEMAS = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

ENDPOINTS = [
    AdminEndpoint("GET", SCHEMAS + "/schema", NAMED_LOOK, get_newest, client="schema"),
    AdminEndpoint("GET", SCHEMAS + "/schema/{version}", NAMED_LOOK, get_version, client="schema_version"),
    AdminEndpoint("GET", SCHEMAS + "/schemas", NAMED_LOOK, get_all, client="schemas"),
    AdminEndpoint("POST", SCHEMAS + "/schema", NAMED_ADMIN, add, body=PostedSchema, client="add_schema"),
    AdminEndpoint(
        "DELETE", SCHEMAS + "/schema", NAMED_ADMIN, delete, query={"force": bool}, client="delete_schema"
    ),
    AdminEndpoint(
        "POST", SCHEMAS + "/compatibility", NAMED_ADMIN, compare, body=PostedSchema, client="check_schema"
    ),
    AdminEndpoint(
        "POST", SCHEMAS + "/version", NAMED_LOOK, find_version, body=PostedSchema, client="find_schema"
    ),
]
