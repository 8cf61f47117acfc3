"""The commands about logs, at a broker whose segments are topics of an Apache Pulsar cluster.

Lookups name the server of the cluster that holds a topic. Clients send and receive messages there.
"""

from __future__ import annotations

from google.protobuf.message import Message

from anabranch.broker.cluster.data_plane import DataPlane
from anabranch.broker.wire.command_handler import CommandHandler
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers import lookup
from anabranch.errors import NotAllowedError
from anabranch.model.names import TopicName, parse_namespace
from anabranch.protocol.pb import pulsar_pb2 as pb


def _data_plane(connection: ServerConnection) -> DataPlane:
    found = connection.services.data_plane
    assert found is not None, "these handlers serve a broker with a data plane"
    return found


async def look_up(connection: ServerConnection, command: pb.CommandLookupTopic) -> None:
    """Answer with the server of the cluster that holds a topic, or with the leader of a scalable topic."""
    lookup.check_listener(command.advertised_listener_name)
    name = TopicName.parse(command.topic)
    if name.is_scalable:
        await lookup.look_up(connection, command)
        return
    plane = _data_plane(connection)
    found = await plane.address(plane.topic_of(name))
    connection.send(
        pb.CommandLookupTopicResponse(
            request_id=command.request_id,
            response=pb.CommandLookupTopicResponse.Connect,
            brokerServiceUrl=found.url or None,
            brokerServiceUrlTls=found.url_tls or None,
            authoritative=True,
            proxy_through_service_url=False,
        )
    )


async def partitions(connection: ServerConnection, command: pb.CommandPartitionedTopicMetadata) -> None:
    name = TopicName.parse(command.topic)
    count = 0 if name.is_scalable else await _data_plane(connection).partitions(name)
    connection.send(
        pb.CommandPartitionedTopicMetadataResponse(
            request_id=command.request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
            partitions=count,
        )
    )


async def topics_of_namespace(connection: ServerConnection, command: pb.CommandGetTopicsOfNamespace) -> None:
    """Answer with the classic topics of the cluster, for clients that poll to follow a pattern."""
    if command.mode != pb.CommandGetTopicsOfNamespace.PERSISTENT:
        raise NotAllowedError("this process lists persistent topics only; ask Apache Pulsar for the others")
    namespace = "/".join(parse_namespace(command.namespace))
    names = [str(name) for name in await _data_plane(connection).topics(namespace)]
    lookup.send_names(connection, command, names)


def refuse(connection: ServerConnection, command: Message) -> None:
    raise NotAllowedError(
        "this process leads topics and holds no messages; look the topic up, and connect to Apache Pulsar"
    )


_COMMANDS_OF_LOGS = (
    pb.CommandProducer,
    pb.CommandSubscribe,
    pb.CommandGetOrCreateSchema,
    pb.CommandGetSchema,
    pb.CommandWatchTopicList,
)

HANDLERS: dict[type[Message], CommandHandler] = {
    pb.CommandLookupTopic: CommandHandler(look_up, lookup.HANDLERS[pb.CommandLookupTopic].refuse),
    pb.CommandPartitionedTopicMetadata: CommandHandler(
        partitions, lookup.HANDLERS[pb.CommandPartitionedTopicMetadata].refuse
    ),
    pb.CommandGetTopicsOfNamespace: CommandHandler(topics_of_namespace),
    **{command: CommandHandler(refuse) for command in _COMMANDS_OF_LOGS},
}
