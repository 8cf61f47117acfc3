"""The layout of a classic topic at a broker that knows no layouts: one segment per partition.

It is the layout that a broker with scalable topics sends for such a topic.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.client.decide.connecting.layout_checks import SEGMENTS_MAX
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.errors import NotAllowedError, RemoteProtocolError
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import TopicName
from anabranch.model.ranges import initial_ranges
from anabranch.protocol.pb import pulsar_pb2 as pb


class ClassicTopicError(NotAllowedError):
    """The operation needs a scalable topic; migrate this one first, with `anabranch topic migrate`."""


async def look_up_classic(
    pool: ConnectionPool, connection: BrokerConnection, topic: TopicName, *, create: bool
) -> Layout:
    """Ask for the partitions of a topic; with `create` the broker may create a missing topic.

    Raises TopicNotFoundError without `create`, as far as the broker can tell.
    """
    name = replace(topic, domain="persistent")
    reply = await connection.request(
        pb.CommandPartitionedTopicMetadata(
            topic=str(name), request_id=pool.next_id(), metadata_auto_creation_enabled=create
        ),
        pb.CommandPartitionedTopicMetadataResponse,
        pool.operation_timeout_s,
    )
    if reply.partitions > SEGMENTS_MAX:
        raise RemoteProtocolError(f"{name} has {reply.partitions} partitions; the limit is {SEGMENTS_MAX}")
    return layout_of_partitions(name, reply.partitions)


def layout_of_partitions(name: TopicName, partitions: int) -> Layout:
    """Return the layout of a classic topic; 0 partitions mean that the topic is not partitioned."""
    names = [str(name.partition_name(index)) for index in range(partitions)] or [str(name)]
    segments = {
        id_: Segment(id_, part, legacy_topic=names[id_])
        for id_, part in enumerate(initial_ranges(len(names)))
    }
    return Layout(0, len(names), segments)
