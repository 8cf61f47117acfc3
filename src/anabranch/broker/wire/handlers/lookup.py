"""Lookups: a topic's owner, its number of partitions and its schemas, and the topics of a namespace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google_crc32c import value as crc32c

from anabranch.broker.catalog.schemas import to_wire
from anabranch.broker.engine.port import LogAddress
from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.errors import LimitExceededError, NotAllowedError, TopicNotFoundError
from anabranch.metadata.topics import ClassicDomain
from anabranch.model.names import TopicName, parse_namespace
from anabranch.protocol.pb import pulsar_pb2 as pb

_DOMAINS: Mapping[int, Sequence[ClassicDomain]] = {
    pb.CommandGetTopicsOfNamespace.PERSISTENT: ("persistent",),
    pb.CommandGetTopicsOfNamespace.NON_PERSISTENT: ("non-persistent",),
    pb.CommandGetTopicsOfNamespace.ALL: ("persistent", "non-persistent"),
}
_NAME_EXTRA_BYTES = 4
"""Bytes that a name in a list takes beside its own: a tag and its size."""


async def look_up(connection: ServerConnection, command: pb.CommandLookupTopic) -> None:
    """Answer with the leader of a scalable topic, or with the server that holds any other topic."""
    check_listener(command.advertised_listener_name)
    name = TopicName.parse(command.topic)
    services = connection.services
    if name.is_scalable:
        broker = await services.owners.owner_of(name) or services.lease.me
        found = LogAddress(broker.url, broker.url_tls)
    else:
        found = await services.engine.address(name)
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


def check_listener(name: str) -> None:
    """Refuse the name of a listener: brokers announce one address, which a named network may not reach."""
    if name.strip():
        raise NotAllowedError(
            f"this broker has no listener {name!r}; leave the listener name of the client out"
        )


async def partitions(connection: ServerConnection, command: pb.CommandPartitionedTopicMetadata) -> None:
    name, count = TopicName.parse(command.topic), 0
    if not name.is_scalable:
        create = command.metadata_auto_creation_enabled
        count = await connection.services.engine.partitions(name, create=create)
    connection.send(
        pb.CommandPartitionedTopicMetadataResponse(
            request_id=command.request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
            partitions=count,
        )
    )


async def topics_of_namespace(connection: ServerConnection, command: pb.CommandGetTopicsOfNamespace) -> None:
    """Answer with all names, unless the client knows them by their hash; the client applies its pattern."""
    namespace = "/".join(parse_namespace(command.namespace))
    found = await connection.services.engine.topics(namespace, _DOMAINS[command.mode])
    names = [str(name) for name in found]
    digest = topics_hash(names)
    changed = not command.HasField("topics_hash") or command.topics_hash != digest
    most = connection.services.config.max_message_bytes
    if changed and len(name_lists(names, most)) > 1:
        # Clients cannot receive a larger frame, and the protocol has no second part for this answer.
        raise LimitExceededError(
            f"the {len(names)} topics of {command.namespace} do not fit into {most} bytes; list them by REST"
        )
    connection.send(
        pb.CommandGetTopicsOfNamespaceResponse(
            request_id=command.request_id,
            topics=names if changed else (),
            filtered=False,
            topics_hash=digest,
            changed=changed,
        )
    )


def name_lists(names: Iterable[str], bytes_max: int) -> list[list[str]]:
    """The names in lists that each fit into a command of `bytes_max` bytes; one list at least."""
    lists: list[list[str]] = [[]]
    left = bytes_max
    for name in names:
        size = len(name.encode()) + _NAME_EXTRA_BYTES
        if size > left and lists[-1]:
            lists.append([])
            left = bytes_max
        lists[-1].append(name)
        left -= size
    return lists


def topics_hash(names: list[str]) -> str:
    """A digest of topic names, by which client and broker compare the sets that they know."""
    joined = ",".join(sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass")))
    checksum: int = crc32c(joined.encode()) if names else 0
    return checksum.to_bytes(4, "little").hex()


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
    version = await services.schemas.admit_producer(name, command.schema, services.clock.wall_ms())
    connection.send(
        pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id, schema_version=version)
    )


HANDLERS = {
    pb.CommandLookupTopic: CommandHandler(
        look_up, refuse_with(pb.CommandLookupTopicResponse, response=pb.CommandLookupTopicResponse.Failed)
    ),
    pb.CommandPartitionedTopicMetadata: CommandHandler(
        partitions,
        refuse_with(
            pb.CommandPartitionedTopicMetadataResponse,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        ),
    ),
    pb.CommandGetTopicsOfNamespace: CommandHandler(topics_of_namespace),
    pb.CommandGetSchema: CommandHandler(get_schema, refuse_with(pb.CommandGetSchemaResponse)),
    pb.CommandGetOrCreateSchema: CommandHandler(
        get_or_create, refuse_with(pb.CommandGetOrCreateSchemaResponse)
    ),
}
