"""Raw access to segments for bulk readers such as Spark: whole entries from a message index on, and tails.

Positions are indexes of messages, which the broker counts from 0 without gaps inside a segment. Entries stay
encoded, because the bulk reader knows which columns it needs. Only Anabranch's brokers support the start
index and the extended answer about the tail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from anabranch.aio import retry
from anabranch.client.net.connection import BrokerConnection, end_consumer
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.reconnector import RECONNECT
from anabranch.errors import AlreadyClosedError, NotConnectedError, UnsupportedFeatureError
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import START_INDEX

UNNUMBERED = "the broker does not number messages; bulk reading needs an Anabranch broker"

PERMITS = 20_000
"""Messages that the broker may send before the reader asks for more."""


class RawEntry(NamedTuple):
    """One stored entry."""

    first_index: int
    """Index of the first message in the entry."""
    message_count: int
    ledger: int
    entry: int
    timestamp_ms: int
    """Time when the broker stored the entry."""
    data: bytes


class SegmentTail(NamedTuple):
    """The messages in a segment now: `first_index` up to but not including `next_index`."""

    first_index: int
    next_index: int
    sealed: bool


class SegmentReader:
    """Reads the entries of one segment that hold the messages `start` up to but not including `stop`.

    `read` returns no entries at the end. The first and last entry may hold messages outside the range, which
    the caller cuts off. After a lost connection the reader goes on with the next entry.
    """

    def __init__(self, pool: ConnectionPool, topic: str, start: int, stop: int) -> None:
        self._pool = pool
        self._topic = topic
        self._next = start
        self._stop = stop
        self._granted = PERMITS
        self._entries: deque[RawEntry] = deque()
        self._returned = 0
        self._received = start
        self._arrived = asyncio.Event()
        self._connection: BrokerConnection | None = None
        self._consumer_id = 0
        self._broken: Exception | None = None

    async def read(self) -> list[RawEntry]:
        """Wait for an entry and return all that have arrived; empty at the end."""
        while not self._entries:
            if self._next >= self._stop:
                await self.close()
                return []
            if self._broken is not None:
                raise self._broken
            if self._connection is None:
                await retry(
                    self._attach,
                    what=f"reading {self._topic}",
                    within_s=self._pool.operation_timeout_s,
                    backoff=RECONNECT,
                    rng=self._pool.rng,
                )
            self._arrived.clear()
            if not self._entries and self._connection is not None:
                await self._arrived.wait()
        taken = list(self._entries)
        self._entries.clear()
        last = taken[-1]
        self._next = last.first_index + last.message_count
        self._give_back(sum(entry.message_count for entry in taken))
        return taken

    def _give_back(self, count: int) -> None:
        self._returned += count
        if self._connection is not None and self._returned * 2 >= self._granted and self._next < self._stop:
            self._connection.send(
                pb.CommandFlow(consumer_id=self._consumer_id, messagePermits=self._returned)
            )
            self._returned = 0

    async def _attach(self) -> None:
        self._received = self._next
        self._entries.clear()
        self._consumer_id, self._connection = await _subscribe(self._pool, self._topic, self, self._next)
        self._returned = 0
        # The first entry may begin before the start and use permits that later messages need, so a small
        # grant must be renewed as well.
        self._granted = min(PERMITS, max(self._stop - self._next, 1))
        self._connection.send(pb.CommandFlow(consumer_id=self._consumer_id, messagePermits=self._granted))

    def delivered(self, delivery: Delivery) -> None:
        """Keep an entry, unless it lies behind the stop or was received before."""
        outer = read_outer(delivery.data)
        if delivery.index is None:
            self._broken = UnsupportedFeatureError(UNNUMBERED)
            self._arrived.set()
            return
        first = delivery.index - outer.num_messages + 1
        if outer.marker or first >= self._stop or delivery.index < self._received:
            return
        self._received = delivery.index + 1
        self._entries.append(
            RawEntry(
                first,
                outer.num_messages,
                delivery.ledger,
                delivery.entry,
                delivery.broker_timestamp or 0,
                delivery.data,
            )
        )
        self._arrived.set()

    def reached_end(self) -> None:
        """Ignored: a sealed segment ends before `stop` only if the caller asked for too many messages."""

    def closed_by_broker(self) -> None:
        self.connection_lost()

    def connection_lost(self) -> None:
        self._connection = None
        self._arrived.set()

    async def close(self) -> None:
        """Stop reading."""
        connection, self._connection = self._connection, None
        if connection is not None:
            end_consumer(connection, self._consumer_id, self._pool.next_id())


class SegmentTails:
    """Asks for the tails of segments repeatedly, through one idle subscription per segment."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._ends: dict[str, _TailEnd] = {}
        self._closed = False

    async def tail(self, topic: str) -> SegmentTail:
        """The messages in a segment now."""
        if self._closed:
            raise AlreadyClosedError("this SegmentTails is closed; open another one")
        return await retry(
            lambda: self._ask(topic),
            what=f"asking for the tail of {topic}",
            within_s=self._pool.operation_timeout_s,
            backoff=RECONNECT,
            rng=self._pool.rng,
        )

    async def tails(self, topics: list[str]) -> dict[str, SegmentTail]:
        """The messages in several segments, asked at the same time."""
        found = await asyncio.gather(*(self.tail(topic) for topic in topics))
        return dict(zip(topics, found, strict=True))

    def forget(self, topic: str) -> None:
        """End the subscription of a segment whose tail is not needed any more."""
        end = self._ends.pop(topic, None)
        if end is not None:
            end.close(self._pool)

    async def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        for topic in list(self._ends):
            self.forget(topic)

    async def _ask(self, topic: str) -> SegmentTail:
        end = self._ends.get(topic)
        if end is None or end.connection is None:
            end = _TailEnd()
            end.consumer_id, end.connection = await _subscribe(self._pool, topic, end, None)
            self._ends[topic] = end
        connection = end.connection
        if connection is None:
            raise NotConnectedError(f"{topic} is not connected; try again")
        reply = await connection.request(
            pb.CommandGetLastMessageId(consumer_id=end.consumer_id, request_id=self._pool.next_id()),
            pb.CommandGetLastMessageIdResponse,
            self._pool.operation_timeout_s,
        )
        if not reply.HasField("next_index"):
            raise UnsupportedFeatureError(UNNUMBERED)
        return SegmentTail(reply.first_index, reply.next_index, reply.sealed)


class _TailEnd:
    """A subscription that asks for no messages."""

    def __init__(self) -> None:
        self.consumer_id = 0
        self.connection: BrokerConnection | None = None

    def delivered(self, delivery: Delivery) -> None:
        """Never called, because the subscription has no permits."""

    def reached_end(self) -> None:
        """Ignored: the answer about the tail says whether the segment is sealed."""

    def closed_by_broker(self) -> None:
        self.connection = None

    def connection_lost(self) -> None:
        self.connection = None

    def close(self, pool: ConnectionPool) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            end_consumer(connection, self.consumer_id, pool.next_id())


async def _subscribe(
    pool: ConnectionPool, topic: str, end: SegmentReader | _TailEnd, start_index: int | None
) -> tuple[int, BrokerConnection]:
    """Subscribe without a cursor, from a message index on or at the end; returns the consumer id."""
    connection = await pool.connection_for(topic)
    consumer_id = pool.next_id()
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=f"reader-{pool.rng.getrandbits(64):016x}",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=consumer_id,
        request_id=pool.next_id(),
        durable=False,
        # The first use of a classic topic's partition creates it. No other log is created by reading.
        force_topic_creation=TopicName.parse(topic).partition is not None,
        initialPosition=pb.CommandSubscribe.Latest,
    )
    if start_index is not None:
        command.metadata.add(key=START_INDEX, value=str(start_index))
        command.initialPosition = pb.CommandSubscribe.Earliest
    connection.consumers[consumer_id] = end
    try:
        await connection.request(command, pb.CommandSuccess, pool.operation_timeout_s)
    except BaseException:
        end_consumer(connection, consumer_id, pool.next_id())
        raise
    if connection.consumers.get(consumer_id) is not end:
        raise NotConnectedError(f"the connection was lost while subscribing to {topic}")
    return consumer_id, connection
