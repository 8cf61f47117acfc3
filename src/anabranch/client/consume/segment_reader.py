"""Raw access to segments for bulk readers such as Spark: whole entries from a message index on, and tails.

Positions are indexes of messages, counted densely from 0 inside a segment by the broker. Entries are not
taken apart here; whoever reads them knows best which columns it wants. Needs a broker of ours, since others
know neither the start index nor the extended answer about the tail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from anabranch.aio import Backoff, is_transient, retry
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.errors import AlreadyClosedError, NotConnectedError, UnsupportedFeatureError
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import START_INDEX

AGAIN = Backoff(0.1, 1.0)

PERMITS = 20_000
"""Messages the broker may send ahead."""


class RawEntry(NamedTuple):
    """One entry as it is stored."""

    first_index: int
    """Index of its first message."""
    message_count: int
    ledger: int
    entry: int
    timestamp_ms: int
    """When the broker stored it."""
    data: bytes


class SegmentTail(NamedTuple):
    """What a segment holds now: messages `first_index` up to but not including `next_index`."""

    first_index: int
    next_index: int
    sealed: bool


class SegmentReader:
    """Reads the entries of one segment that hold the messages `start` up to but not including `stop`.

    Iteration ends by itself at `stop`. The first and last entry may hold messages outside; the caller cuts
    them off. After a lost connection reading goes on where it was.
    """

    def __init__(self, pool: ConnectionPool, topic: str, start: int, stop: int) -> None:
        self._pool = pool
        self._topic = topic
        self._next = start
        self._stop = stop
        self._permits = self._granted = PERMITS
        self._entries: deque[RawEntry] = deque()
        self._returned = 0
        self._received = start
        self._arrived = asyncio.Event()
        self._connection: BrokerConnection | None = None
        self._consumer_id = 0
        self._broken: Exception | None = None

    def __aiter__(self) -> SegmentReader:
        return self

    async def __anext__(self) -> RawEntry:
        entries = await self.read()
        if not entries:
            raise StopAsyncIteration
        self._entries.extendleft(reversed(entries[1:]))
        return entries[0]

    async def read(self) -> list[RawEntry]:
        """All entries at hand, after waiting for one; empty at the end."""
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
                    backoff=AGAIN,
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
        # The first entry may begin before the start and use up permits that messages of the slice would need,
        # so a small grant must be renewed as well.
        self._granted = min(self._permits, max(self._stop - self._next, 1))
        self._connection.send(pb.CommandFlow(consumer_id=self._consumer_id, messagePermits=self._granted))

    def delivered(self, delivery: Delivery) -> None:
        """Keep an entry, unless it is past the end or was read before."""
        outer = read_outer(delivery.data)
        if delivery.index is None:
            self._broken = UnsupportedFeatureError("the broker does not number messages")
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
        """A sealed segment ends before `stop` only when the caller asked for more than there is."""

    def closed_by_broker(self) -> None:
        self.connection_lost()

    def connection_lost(self) -> None:
        self._connection = None
        self._arrived.set()

    async def close(self) -> None:
        """Stop reading."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.consumers.pop(self._consumer_id, None)
            connection.send(
                pb.CommandCloseConsumer(consumer_id=self._consumer_id, request_id=self._pool.next_id())
            )


class SegmentTails:
    """Asks for the tails of segments again and again; keeps one idle subscription for each that is asked."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._ends: dict[str, _TailEnd] = {}
        self._closed = False

    async def tail(self, topic: str) -> SegmentTail:
        """What a segment holds now."""
        if self._closed:
            raise AlreadyClosedError("the reader of tails is closed")
        return await retry(
            lambda: self._ask(topic),
            what=f"asking for the tail of {topic}",
            within_s=self._pool.operation_timeout_s,
            backoff=AGAIN,
            rng=self._pool.rng,
            transient=is_transient,
        )

    async def tails(self, topics: list[str]) -> dict[str, SegmentTail]:
        """What several segments hold, asked at once."""
        found = await asyncio.gather(*(self.tail(topic) for topic in topics))
        return dict(zip(topics, found, strict=True))

    def forget(self, topic: str) -> None:
        """End the subscription of a segment that nobody will ask for again."""
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
            raise NotConnectedError(f"{topic} is not connected")
        reply = await connection.request(
            pb.CommandGetLastMessageId(consumer_id=end.consumer_id, request_id=self._pool.next_id()),
            pb.CommandGetLastMessageIdResponse,
            self._pool.operation_timeout_s,
        )
        if not reply.HasField("next_index"):
            raise UnsupportedFeatureError("the broker does not number messages")
        return SegmentTail(reply.first_index, reply.next_index, reply.sealed)


class _TailEnd:
    """A subscription that never gets permits."""

    def __init__(self) -> None:
        self.consumer_id = 0
        self.connection: BrokerConnection | None = None

    def delivered(self, delivery: Delivery) -> None:
        """Nothing comes without permits."""

    def reached_end(self) -> None:
        """The tail says so too."""

    def closed_by_broker(self) -> None:
        self.connection = None

    def connection_lost(self) -> None:
        self.connection = None

    def close(self, pool: ConnectionPool) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.consumers.pop(self.consumer_id, None)
            connection.send(pb.CommandCloseConsumer(consumer_id=self.consumer_id, request_id=pool.next_id()))


async def _subscribe(
    pool: ConnectionPool, topic: str, end: SegmentReader | _TailEnd, start_index: int | None
) -> tuple[int, BrokerConnection]:
    """A non-durable subscription from a message index on, or at the end."""
    connection = await pool.connection_for(topic)
    consumer_id = pool.next_id()
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=f"reader-{pool.rng.getrandbits(64):016x}",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=consumer_id,
        request_id=pool.next_id(),
        durable=False,
        # A partition of a classic topic is made on its first use, and this may be the first. Nothing else is.
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
        connection.consumers.pop(consumer_id, None)
        connection.send(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=pool.next_id()))
        raise
    if connection.consumers.get(consumer_id) is not end:
        raise NotConnectedError(f"the connection was lost while subscribing to {topic}")
    return consumer_id, connection
