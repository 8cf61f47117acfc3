"""A client for bulk readers and writers, such as Spark: whole entries, logs and cursors.

Applications use `AsyncClient`, which has none of this.
"""

from __future__ import annotations

from anabranch.client.api import AsyncClient
from anabranch.client.bulk.bulk_producer import BulkProducer
from anabranch.client.bulk.cursor_mirror import CursorMirror
from anabranch.client.bulk.entry_sender import EntrySender
from anabranch.client.bulk.reading_client import BulkReading
from anabranch.client.consume.consumers.arguments import StreamArguments, stream_options
from anabranch.client.consume.consumers.stream_parts import StreamParts
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.ends import ConsumerEnd
from anabranch.client.net.subscribing import end_consumer
from anabranch.client.options import CompressionName, PublishOptions
from anabranch.client.schema import BYTES
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb


class BulkClient(AsyncClient, BulkReading):
    """Adds to the client of applications what bulk readers and sinks need."""

    async def create_bulk_producer(
        self, topic: str, *, compression: CompressionName | None = None
    ) -> BulkProducer:
        """Open a producer of encoded rows; their send timeout is the operation timeout of the client."""
        options = PublishOptions(compression=compression, send_timeout_s=self.operation_timeout_s)
        return await self._open_bulk(topic, options)

    async def append_to_log(self, log: str, name: str | None, subscription: str) -> BulkProducer:
        """Open a producer of whole entries; the broker keeps them until `subscription` releases them."""
        options = PublishOptions(
            name=name,
            batching=False,
            send_timeout_s=self.operation_timeout_s,
            initial_subscription=subscription,
        )
        return await self._open_bulk(log, options)

    async def _open_bulk(self, topic: str, options: PublishOptions) -> BulkProducer:
        publisher = self._new_publisher(topic, BYTES, options)
        self.life.producers[publisher] = None
        await publisher.open()
        return BulkProducer(publisher)

    async def release(self, log: str, subscription: str, ledger: int, entry: int) -> None:
        """Let the broker trim a log up to an entry; `subscription` keeps the entries behind it."""
        await _release_up_to(self.life.connections(), log, subscription, ledger, entry)

    def entry_sender(
        self, log: str, name: str, *, managed: bool = False, on_pulsar: bool = False
    ) -> EntrySender:
        """A sender of ready-made entries to one log; open and close it yourself."""
        return EntrySender(self.life.connections(), log, name, managed=managed, on_pulsar=on_pulsar)

    async def mirror_cursors(self, topic: str, subscription: str, name: str) -> CursorMirror:
        """Hold the cursors of a stream subscription, made at the beginning of the topic if it is missing.

        For readers that keep their positions elsewhere, such as Spark: retention waits for them, and tools
        show how far they are.
        """
        given: StreamArguments = {
            "name": name,
            "receiver_queue_size": 1,
            "ack_group_time": 0.0,
            "ack_receipts": True,
        }
        options = stream_options(topic, subscription, "earliest", given)
        parts = StreamParts(self.life.connections(), BYTES, options, self._open_letters, paused=True)
        return await self._opened(CursorMirror(parts))


class _NoReader(ConsumerEnd):
    """A consumer that asks for no messages."""

    def delivered(self, delivery: Delivery) -> None: ...
    def reached_end(self) -> None: ...
    def active_changed(self, active: bool) -> None: ...
    def closed_by_broker(self) -> None: ...
    def connection_lost(self) -> None: ...


async def _release_up_to(pool: ConnectionPool, log: str, subscription: str, ledger: int, entry: int) -> None:
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
