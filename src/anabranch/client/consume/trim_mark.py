"""Tells the broker that a log is not needed up to an entry, through a subscription that keeps the rest."""

from __future__ import annotations

from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.ends import ConsumerEnd
from anabranch.client.net.subscribing import end_consumer
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb


class _NoReader(ConsumerEnd):
    """A consumer that asks for no messages."""

    def delivered(self, delivery: Delivery) -> None: ...
    def reached_end(self) -> None: ...
    def active_changed(self, active: bool) -> None: ...
    def closed_by_broker(self) -> None: ...
    def connection_lost(self) -> None: ...


async def release_up_to(pool: ConnectionPool, log: str, subscription: str, ledger: int, entry: int) -> None:
    """Acknowledge all entries up to this one; raises ConsumerBusyError if another caller does the same."""
    connection = await pool.connection_for(log)
    consumer_id = pool.next_id()
    subscribe = pb.CommandSubscribe(
        topic=log,
        subscription=subscription,
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=consumer_id,
        request_id=pool.next_id(),
        durable=True,
        force_topic_creation=False,
        initialPosition=pb.CommandSubscribe.Earliest,
    )
    ack = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.Cumulative,
        message_id=[pb.MessageIdData(ledgerId=ledger, entryId=entry)],
        request_id=pool.next_id(),
    )
    connection.consumers[consumer_id] = _NoReader()
    try:
        await connection.request(subscribe, pb.CommandSuccess, pool.operation_timeout_s)
        await connection.request(ack, pb.CommandAckResponse, pool.operation_timeout_s)
    finally:
        end_consumer(connection, consumer_id, pool.next_id())
