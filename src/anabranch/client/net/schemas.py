"""Schemas of topics, as the broker's registry keeps them; this module does not read their definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.schema import Codec, Schema
from anabranch.errors import RemoteProtocolError
from anabranch.model.names import TopicName
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


async def look_up_schema(
    pool: ConnectionPool, topic: TopicName, version: bytes | None = None
) -> TopicSchema | None:
    """Return a version of the topic's schema, the newest by default; None when the topic has none."""
    connection = await pool.any_connection()
    command = pb.CommandGetSchema(request_id=pool.next_id(), topic=str(topic))
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
    """The definition that the broker registers; None for codecs of applications, which have none."""
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
