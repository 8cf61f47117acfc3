"""GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

from anabranch.broker.catalog.schemas import to_wire
from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.errors import TopicNotFoundError
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb


async def get_schema(connection: ServerConnection, command: pb.CommandGetSchema) -> None:
    name = TopicName.parse(command.topic)
    version = command.schema_version if command.HasField("schema_version") else None
    found = await connection.services.schemas.get(name, version)
    if found is None:
        raise TopicNotFoundError(f"{name} has no such schema")
    schema, number = found
    connection.send(
        pb.CommandGetSchemaResponse(
            request_id=command.request_id, schema=to_wire(schema), schema_version=number
        )
    )


async def get_or_create(connection: ServerConnection, command: pb.CommandGetOrCreateSchema) -> None:
    name = TopicName.parse(command.topic)
    services = connection.services
    if not name.is_segment and await services.classic.partitions(name) is None:
        await services.records.load(name.topic)
    version = await services.schemas.register(name, command.schema, services.clock.wall_ms())
    connection.send(
        pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id, schema_version=version)
    )


HANDLERS = {
    pb.CommandGetSchema: CommandHandler(get_schema, refuse_with(pb.CommandGetSchemaResponse)),
    pb.CommandGetOrCreateSchema: CommandHandler(
        get_or_create, refuse_with(pb.CommandGetOrCreateSchemaResponse)
    ),
}
