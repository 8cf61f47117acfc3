"""Commands by which a producer registers with a segment, or asks which of its entries a segment has stored.

Only brokers of ours answer the question, and they answer it for sealed segments too.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import AccessMode, ProducerOptions
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import MANAGED, SETTLE, pairs

_ACCESS_MODES: Mapping[AccessMode, pb.ProducerAccessMode.ValueType] = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait_for_exclusive": pb.WaitForExclusive,
    "exclusive_with_fencing": pb.ExclusiveWithFencing,
}


def registration(
    pool: ConnectionPool, topic: str, producer_name: str, options: ProducerOptions, *, managed: bool
) -> pb.CommandProducer:
    """The command that registers a producer; `managed` says that the client follows a classic topic."""
    properties = dict(options.properties)
    if managed:
        properties[MANAGED] = "true"
    command = pb.CommandProducer(
        topic=topic,
        producer_id=pool.next_id(),
        request_id=pool.next_id(),
        producer_name=producer_name,
        user_provided_producer_name=options.name is not None,
        producer_access_mode=_ACCESS_MODES[options.access_mode],
        metadata=pairs(properties),
    )
    if options.initial_subscription is not None:
        command.initial_subscription_name = options.initial_subscription
    return command


async def ask_what_is_stored(
    pool: ConnectionPool, connection: BrokerConnection, topic: str, producer_name: str
) -> pb.CommandProducerSuccess | None:
    """The answer of the segment's owner; None if the owner is no broker of ours."""
    if not connection.is_ours:
        return None
    command = pb.CommandProducer(
        topic=topic,
        producer_id=pool.next_id(),
        request_id=pool.next_id(),
        producer_name=producer_name,
        metadata=pairs({SETTLE: "true"}),
    )
    return await connection.request(command, pb.CommandProducerSuccess, pool.operation_timeout_s)


def stored_here(reply: pb.CommandProducerSuccess) -> int:
    """The last sequence id that the segment itself has stored.

    A successor also reports ids that its predecessors stored, but not every id below those is stored.
    """
    return reply.own_sequence_id if reply.HasField("own_sequence_id") else reply.last_sequence_id
