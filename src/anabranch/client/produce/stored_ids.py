"""Asking a segment what it has stored under a producer's name, also when it is sealed.

Only brokers of ours can answer. Must not know what the answer is needed for.
"""

from __future__ import annotations

from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import SETTLE, pairs


async def ask_what_is_stored(
    pool: ConnectionPool, connection: BrokerConnection, topic: str, producer_name: str, within_s: float
) -> pb.CommandProducerSuccess | None:
    """The answer of the segment's owner, None if it is no broker of ours."""
    if not connection.is_ours:
        return None
    command = pb.CommandProducer(
        topic=topic,
        producer_id=pool.next_id(),
        request_id=pool.next_id(),
        producer_name=producer_name,
        metadata=pairs({SETTLE: "true"}),
    )
    return await connection.request(command, pb.CommandProducerSuccess, within_s)


def stored_here(reply: pb.CommandProducerSuccess) -> int:
    """The last sequence id that the segment itself has stored.

    Its successors know of ids that others have stored before them, but not everything below those.
    """
    return reply.own_sequence_id if reply.HasField("own_sequence_id") else reply.last_sequence_id
