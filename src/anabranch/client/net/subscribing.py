"""Begins and ends the consumer of one log on a connection. The caller decides what it reads."""

from __future__ import annotations

from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.ends import ConsumerEnd
from anabranch.protocol.pb import pulsar_pb2 as pb


async def begin_consumer(
    pool: ConnectionPool, connection: BrokerConnection, command: pb.CommandSubscribe, consumer: ConsumerEnd
) -> pb.CommandSuccess:
    """Subscribe; the consumer hears of entries from now on, and ends at both ends if the broker refuses."""
    connection.consumers[command.consumer_id] = consumer
    try:
        return await connection.request(command, pb.CommandSuccess, pool.operation_timeout_s)
    except BaseException:
        # A subscription that was cancelled, or not answered in time, may still begin at the broker.
        end_consumer(connection, command.consumer_id, pool.next_id())
        raise


def end_consumer(connection: BrokerConnection, consumer_id: int, request_id: int) -> None:
    """End a consumer on a connection without waiting for the broker's answer."""
    connection.consumers.pop(consumer_id, None)
    connection.send(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id))
