"""Finds places in a topic of Apache Pulsar through a reader of its own.

The broker answers the question for the last message of a topic with none when its last ledger is empty. A
topic that was loaded and sealed before it got another message has such a ledger, and older messages. A search
for a time that no message has reached finds its real end, in as many reads as a binary search takes.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.subscribing import end_consumer
from anabranch.errors import NotConnectedError, OperationTimeoutError, RemoteProtocolError, UnknownServerError
from anabranch.model.names import TopicName
from anabranch.protocol.commands import NO_ID, Delivery
from anabranch.protocol.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb

Place = tuple[int, int]
"""Ledger and entry; the entry is -1 before the first one of its ledger."""

LATEST: Final[Place] = (2**63 - 1, 2**63 - 1)
"""The start of a reader that wants new entries only."""

BEHIND_ALL_MS: Final = 2**62
"""A time that no message has."""


class LastMessage(NamedTuple):
    """The last message of a topic; `batch_index` is -1 if its entry is not a batch."""

    ledger: int
    entry: int
    batch_index: int


async def place_at_time(
    pool: ConnectionPool, connection: BrokerConnection, topic: str, time_ms: int
) -> Place:
    """Return the first entry that was published at this time or later, or the place behind the last entry."""
    reader = _SearchReader(pool, connection, topic)
    try:
        await reader.subscribe(None)
        seek = pb.CommandSeek(
            consumer_id=reader.consumer_id, request_id=pool.next_id(), message_publish_time=time_ms
        )
        await connection.request(seek, pb.CommandSuccess, pool.operation_timeout_s)
        # The broker has moved the cursor and closed its consumer; the next one finds the cursor there.
        await reader.subscribe(None)
        ask = pb.CommandGetLastMessageId(consumer_id=reader.consumer_id, request_id=pool.next_id())
        reply = await connection.request(ask, pb.CommandGetLastMessageIdResponse, pool.operation_timeout_s)
        if not reply.HasField("consumer_mark_delete_position"):
            raise RemoteProtocolError(f"the broker does not tell where a cursor of {topic} stands")
        ledger, entry = place_of(reply.consumer_mark_delete_position)
        return ledger, entry + 1
    finally:
        reader.leave()


async def last_place(pool: ConnectionPool, connection: BrokerConnection, topic: str) -> Place | None:
    """Find the last stored entry of a topic, also before empty ledgers; None if no entry is stored."""
    try:
        ledger, behind = await place_at_time(pool, connection, topic, BEHIND_ALL_MS)
    except UnknownServerError:
        if await end_of_empty(pool, connection, topic) is None:
            raise
        return None
    return (ledger, behind - 1) if behind > 0 else None


async def end_of_empty(pool: ConnectionPool, connection: BrokerConnection, topic: str) -> Place | None:
    """Return the end of a topic that has no ledger; None if the topic may have entries.

    Pulsar 4.0.7 fails without a reason to place a reader at the beginning of a topic that was sealed before
    its first entry and loaded again. A reader at the end can be placed. An older entry would let a reader
    begin, so the beginning is tried once more.
    """
    reader = _SearchReader(pool, connection, topic)
    try:
        await reader.subscribe(LATEST)
        ask = pb.CommandGetLastMessageId(consumer_id=reader.consumer_id, request_id=pool.next_id())
        reply = await connection.request(ask, pb.CommandGetLastMessageIdResponse, pool.operation_timeout_s)
    finally:
        reader.leave()
    if place_of(reply.last_message_id)[1] >= 0:
        return None
    first = _SearchReader(pool, connection, topic)
    try:
        await first.subscribe(None)
    except UnknownServerError:
        ledger, entry = place_of(reply.consumer_mark_delete_position)
        return max(ledger, 0), entry + 1
    finally:
        first.leave()
    return None


async def last_message(pool: ConnectionPool, connection: BrokerConnection, topic: str) -> LastMessage | None:
    """Return the last message of a topic, also if empty ledgers follow its entry; None without messages."""
    found = await last_place(pool, connection, topic)
    if found is None:
        return None
    reader = _SearchReader(pool, connection, topic)
    try:
        await reader.subscribe(found)
        connection.send(pb.CommandFlow(consumer_id=reader.consumer_id, messagePermits=1))
        async with asyncio.timeout(pool.operation_timeout_s):
            entry = await reader.first
    except TimeoutError as error:
        if isinstance(error, OperationTimeoutError):
            raise
        raise OperationTimeoutError(f"{connection.peer} did not send the last entry of {topic}") from None
    finally:
        reader.leave()
    outer = read_outer(entry.data)
    return LastMessage(entry.ledger, entry.entry, outer.num_messages - 1 if outer.is_batch else -1)


def place_of(id_: pb.MessageIdData) -> Place:
    """Return the place in a message id; its numbers have a sign, although the wire shows none."""
    return _signed(id_.ledgerId), _signed(id_.entryId)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


class _SearchReader:
    """A reader of one topic, as the connection sees it."""

    def __init__(self, pool: ConnectionPool, connection: BrokerConnection, topic: str) -> None:
        self.consumer_id = 0
        self.first: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        """The first entry that arrives."""
        self._pool = pool
        self._connection = connection
        self._topic = topic
        self._name = f"reader-{pool.rng.getrandbits(64):016x}"

    async def subscribe(self, start: Place | None) -> None:
        """Subscribe from an entry on, or where the cursor stands; a new cursor stands before all entries."""
        pool, connection = self._pool, self._connection
        ledger, entry = (NO_ID, NO_ID) if start is None else start
        self.consumer_id = pool.next_id()
        command = pb.CommandSubscribe(
            topic=self._topic,
            subscription=self._name,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=self.consumer_id,
            request_id=pool.next_id(),
            durable=False,
            # The first use of a classic topic's partition creates it. No other log is created by reading.
            force_topic_creation=TopicName.parse(self._topic).partition is not None,
            start_message_id=pb.MessageIdData(ledgerId=ledger, entryId=entry),
        )
        connection.consumers[self.consumer_id] = self
        await connection.request(command, pb.CommandSuccess, pool.operation_timeout_s)

    def delivered(self, delivery: Delivery) -> None:
        if not self.first.done():
            self.first.set_result(delivery)

    def reached_end(self) -> None:
        """Ignored: the reader is asked for entries that are stored."""

    def active_changed(self, active: bool) -> None:
        """Ignored: a reader has its subscription alone."""

    def closed_by_broker(self) -> None:
        """Ignored: a seek closes the consumer, and the next subscription follows."""

    def connection_lost(self) -> None:
        if not self.first.done():
            self.first.set_exception(
                NotConnectedError(f"the connection was lost while reading {self._topic}")
            )
            self.first.exception()

    def leave(self) -> None:
        end_consumer(self._connection, self.consumer_id, self._pool.next_id())
