"""Schemas of topics, as the broker's registry keeps them; this module does not read their definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.topics.layout_watch import TopicLayout, look_up_layout
from anabranch.client.schema import Codec, Schema
from anabranch.errors import InvalidConfigurationError, RemoteProtocolError, TopicNotFoundError
from anabranch.model.names import TopicName
from anabranch.protocol.connection import CONTROL_VERSION
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import pairs
from anabranch.protocol.wire_errors import exception_for
from anabranch.schemas.definitions import Definition


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of the schema of a topic."""

    kind: str
    """Pulsar's name of the schema type, such as Json, Avro, ProtobufNative or String."""
    data: bytes
    """The definition: JSON for Json, Avro and ProtobufNative, empty for most others."""
    version: bytes = b""
    """As messages carry it; opaque."""
    properties: Mapping[str, str] = field(default_factory=dict)


def has_own_schemas(topic: TopicName, segment_topic: str) -> bool:
    """Return whether a segment's topic at Apache Pulsar numbers its schemas itself.

    All other segments and partitions share the versions of their topic.
    """
    held = TopicName.parse(segment_topic)
    return topic.topic not in (held.topic, held.partitioned_topic.topic)


def version_bytes(version: bytes | int | None) -> bytes | None:
    """Return a version as messages carry it; raises InvalidConfigurationError."""
    if version is None or isinstance(version, bytes):
        return version
    if not isinstance(version, int) or not 0 <= version < 2**63:
        raise InvalidConfigurationError(
            f"version must be a whole number from 0 on, or bytes, not {version!r}"
        )
    return version.to_bytes(8, "big")


async def look_up_schema(
    pool: ConnectionPool, topic: TopicName, version: bytes | None = None
) -> TopicSchema | None:
    """Return a version of the topic's schema, the newest by default; None when the topic has none.

    Raises InvalidConfigurationError for a version of a topic whose segments number their schemas themselves.
    """
    connection = await pool.any_connection()
    if _keeps_schemas(connection):
        return await _ask(pool, connection, str(topic), version)
    for segment_topic in await _held_in(pool, topic, version):
        found = await _ask(pool, await pool.connection_for(segment_topic), segment_topic, version)
        if found is not None:
            return found
    return None


async def look_up_writer(
    pool: ConnectionPool, topic: TopicName, segment_topic: str, version: bytes
) -> TopicSchema | None:
    """Return the version of the schema that an entry of a segment names; as `look_up_schema`."""
    connection = await pool.any_connection()
    if _keeps_schemas(connection):
        return await _ask(pool, connection, str(topic), version)
    return await _ask(pool, await pool.connection_for(segment_topic), segment_topic, version)


def _keeps_schemas(connection: BrokerConnection) -> bool:
    """Return whether a broker knows the schemas of scalable topics by the names of these topics."""
    machine = connection.machine
    return machine.server_features.supports_scalable_topics and machine.server_version != CONTROL_VERSION


async def _held_in(pool: ConnectionPool, topic: TopicName, version: bytes | None) -> list[str]:
    """Return the topics of Pulsar to ask for the schema of a topic, the likeliest first."""
    if not topic.is_scalable:
        return [str(topic)]
    try:
        names = _newest_first(await look_up_layout(pool, topic, create=False))
    except TopicNotFoundError:
        return []
    if version is not None and any(has_own_schemas(topic, name) for name in names):
        raise InvalidConfigurationError(
            f"each segment of {topic} numbers its schemas itself; name one, such as {names[0]}"
        )
    return names


def _newest_first(layout: TopicLayout) -> list[str]:
    """Active segments first: each gets the schema of a producer when that producer opens it."""
    active = layout.layout.active
    sealed = sorted(layout.layout.sealed, key=lambda segment: -segment.id)
    return [layout.segment_topic(segment) for segment in (*active, *sealed)]


async def _ask(
    pool: ConnectionPool, connection: BrokerConnection, topic: str, version: bytes | None
) -> TopicSchema | None:
    command = pb.CommandGetSchema(request_id=pool.next_id(), topic=topic)
    if version is not None:
        command.schema_version = version
    reply = await connection.request(command, pb.CommandGetSchemaResponse, pool.operation_timeout_s)
    if reply.error_code == pb.TopicNotFound:
        return None
    if reply.HasField("error_code"):
        raise exception_for(reply.error_code, reply.error_message)
    schema = reply.schema
    try:
        kind = pb.Schema.Type.Name(schema.type)
    except ValueError:
        raise RemoteProtocolError(f"the broker sent a schema of unknown type {schema.type}") from None
    return TopicSchema(
        kind, schema.schema_data, reply.schema_version, {pair.key: pair.value for pair in schema.properties}
    )


def definition_of_codec(codec: Codec[Any]) -> Definition | None:
    """Return the definition that the broker registers; None for codecs of applications, which have none."""
    return codec.definition if isinstance(codec, Schema) else None


def to_wire(definition: Definition) -> pb.Schema:
    return pb.Schema(
        name="",
        schema_data=definition.data,
        type=pb.Schema.Type.Value(definition.kind),
        properties=pairs(definition.properties),
    )


def describe_schema(command: pb.CommandSubscribe, codec: Codec[Any]) -> None:
    """Add the schema of a consumer, if it has a definition, to its command."""
    if (definition := definition_of_codec(codec)) is not None:
        command.schema.CopyFrom(to_wire(definition))


async def register_schema(pool: ConnectionPool, topic: str, owner: str | None, schema: pb.Schema) -> bytes:
    """Register a schema with the owner of a segment; returns its version."""
    connection = await pool.connection_for(topic, owner)
    command = pb.CommandGetOrCreateSchema(request_id=pool.next_id(), topic=topic, schema=schema)
    reply = await connection.request(command, pb.CommandGetOrCreateSchemaResponse, pool.operation_timeout_s)
    if reply.HasField("error_code"):
        raise exception_for(reply.error_code, reply.error_message)
    return reply.schema_version
