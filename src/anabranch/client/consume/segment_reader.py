"""Raw access to segments for bulk readers such as Spark: whole entries from a message index on.

The broker counts messages from 0 without gaps inside a segment. Entries stay encoded, because the bulk reader
knows which columns it needs. Only Anabranch's brokers support this.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, NamedTuple, TypeVar

from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection import BrokerConnection, end_consumer
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Seconds, optional_seconds
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    NotConnectedError,
    OperationTimeoutError,
    RemoteProtocolError,
    TopicNotFoundError,
    UnsupportedFeatureError,
)
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.protocol.claims import ENTRY_MESSAGES_MAX, permits_for
from anabranch.protocol.commands import Delivery
from anabranch.protocol.frames import metadata_span
from anabranch.protocol.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import BUCKET_HASHES, START_INDEX

E = TypeVar("E")

UNNUMBERED = "the broker does not number messages; bulk reading needs an Anabranch broker"

INDEX_MAX = 2**62
"""No broker has numbered so many messages."""

PERMITS = 20_000
"""Messages that the broker may send before the reader asks for more."""


class RawEntry(NamedTuple):
    first_index: int
    message_count: int
    ledger: int
    entry: int
    timestamp_ms: int
    """Time when the broker stored the entry."""
    data: bytes


class RawSubscription:
    """A subscription to one segment without a cursor, which asks for no messages by itself."""

    def __init__(self, pool: ConnectionPool, topic: str, name: str | None = None) -> None:
        """Without a name, each subscription has a new one."""
        self._pool = pool
        self._topic = topic
        self._name = name
        self.bucket_hashes: HashRange | None = None
        """Entries without a message of these bucket hashes come without their payload; None for all."""
        self.connection: BrokerConnection | None = None
        self.consumer_id = 0
        self.log_id: int | None = None
        """The log of the last subscription; None if the broker does not tell."""

    async def subscribe(
        self, start_index: int | None, start_id: pb.MessageIdData | None = None
    ) -> BrokerConnection:
        """Subscribe from a message index on, from the entry of a message id on, or at the end."""
        pool = self._pool
        connection = await pool.connection_for(self._topic)
        consumer_id = pool.next_id()
        command = pb.CommandSubscribe(
            topic=self._topic,
            subscription=self._name or f"reader-{pool.rng.getrandbits(64):016x}",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=consumer_id,
            request_id=pool.next_id(),
            durable=False,
            # The first use of a classic topic's partition creates it. No other log is created by reading.
            force_topic_creation=TopicName.parse(self._topic).partition is not None,
            initialPosition=pb.CommandSubscribe.Latest,
        )
        if start_index is not None:
            command.metadata.add(key=START_INDEX, value=str(start_index))
            command.initialPosition = pb.CommandSubscribe.Earliest
        if self.bucket_hashes is not None:
            wanted = f"{self.bucket_hashes.start}-{self.bucket_hashes.end}"
            command.metadata.add(key=BUCKET_HASHES, value=wanted)
        if start_id is not None:
            command.start_message_id.CopyFrom(start_id)
        connection.consumers[consumer_id] = self
        try:
            reply = await connection.request(command, pb.CommandSuccess, pool.operation_timeout_s)
        except BaseException:
            end_consumer(connection, consumer_id, pool.next_id())
            raise
        if connection.consumers.get(consumer_id) is not self:
            raise NotConnectedError(f"the connection was lost while subscribing to {self._topic}")
        self.consumer_id, self.connection = consumer_id, connection
        self.log_id = reply.log_id if reply.HasField("log_id") else None
        return connection

    def delivered(self, delivery: Delivery) -> None:
        """Receive an entry; the broker sends none without permits."""

    def reached_end(self) -> None:
        """Ignored: a caller stops at the indexes that the answer about the tail names."""

    def active_changed(self, active: bool) -> None:
        """Ignored: a reader has its subscription alone."""

    def closed_by_broker(self) -> None:
        self.connection_lost()

    def connection_lost(self) -> None:
        self.connection = None

    def leave(self) -> None:
        """End the subscription without waiting for the broker."""
        connection, self.connection = self.connection, None
        if connection is not None:
            end_consumer(connection, self.consumer_id, self._pool.next_id())


class OpenTails:
    """One subscription for each segment whose tail is asked for repeatedly."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._subscriptions: dict[str, RawSubscription] = {}
        self._closed = False

    def forget(self, topic: str) -> None:
        """End the subscription of a segment whose tail is not needed any more."""
        subscription = self._subscriptions.pop(topic, None)
        if subscription is not None:
            subscription.leave()

    async def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        for topic in list(self._subscriptions):
            self.forget(topic)


class EntryReader(RawSubscription, Generic[E]):
    """A raw subscription whose entries are read many at a time."""

    async def read(self, timeout: Seconds | None = None) -> list[E]:
        """Wait for an entry and return all that have arrived; empty at the end.

        Raises OperationTimeoutError when none arrives within `timeout`, by default the operation timeout.
        """
        limit = optional_seconds("timeout", timeout)
        limit_s = self._pool.operation_timeout_s if limit is None else limit
        deadline = Deadline(limit_s)
        if not await deadline.allow(self._wait_for_entries(deadline)):
            where = f" at {self.connection.peer}" if self.connection is not None else ""
            raise OperationTimeoutError(f"{self._topic}{where} gave no message within {limit_s:g} s")
        return self._take_entries()

    async def _wait_for_entries(self, deadline: Deadline) -> None:
        """Return when an entry has arrived, or the end is reached."""
        raise NotImplementedError

    def _take_entries(self) -> list[E]:
        """Take all entries that have arrived."""
        raise NotImplementedError


class SegmentReader(EntryReader[RawEntry]):
    """Reads the entries of one segment that hold the messages `start` up to but not including `stop`.

    `read` returns no entries at the end. The first and last entry may hold messages outside the range, which
    the caller cuts off. After a lost connection the reader goes on with the next entry.
    """

    def __init__(
        self, pool: ConnectionPool, topic: str, start: int, stop: int, log_id: int | None = None
    ) -> None:
        """With `log_id`, `read` raises TopicNotFoundError for another log of the same name."""
        super().__init__(pool, topic)
        self._wanted_log = log_id
        self._next = start
        self._stop = stop
        self._granted = PERMITS
        self._entries: deque[RawEntry] = deque()
        self._returned = 0
        self._received = start
        self._next_place = (-1, -1)
        """The place of the entry that follows the last one received."""
        self._stop_passed = False
        """Whether an entry behind the stop arrived."""
        self._arrived = asyncio.Event()
        self._broken: Exception | None = None
        self._closed = False

    async def _wait_for_entries(self, deadline: Deadline) -> None:
        while not self._entries:
            if self._closed:
                raise AlreadyClosedError("the reader is closed; open another one")
            if self._next >= self._stop or self._stop_passed:
                self.leave()
                return
            if self._broken is not None:
                raise self._broken
            if self.connection is None:
                what = f"reading {self._topic}"
                await self._pool.retry(self._attach, what, within_s=deadline.left_s)
            self._arrived.clear()
            if not self._entries and self.connection is not None:
                await self._arrived.wait()

    def _take_entries(self) -> list[RawEntry]:
        taken = list(self._entries)
        if not taken:
            return taken
        self._entries.clear()
        last = taken[-1]
        self._next = last.first_index + last.message_count
        self._returned += sum(permits_for(entry.message_count, entry.data) for entry in taken)
        if self.connection is not None and self._returned * 2 >= self._granted and self._next < self._stop:
            self.connection.send(pb.CommandFlow(consumer_id=self.consumer_id, messagePermits=self._returned))
            self._returned = 0
        return taken

    async def _attach(self) -> None:
        self._received = self._next
        self._next_place = (-1, -1)
        self._entries.clear()
        connection = await self.subscribe(self._next)
        if self._wanted_log is not None and self.log_id not in (None, self._wanted_log):
            self.leave()
            raise TopicNotFoundError(f"{self._topic} was deleted and created again")
        self._returned = 0
        # The first entry may begin before the start and use permits that later messages need, so a small
        # grant must be renewed as well.
        self._granted = min(PERMITS, max(self._stop - self._next, 1))
        connection.send(pb.CommandFlow(consumer_id=self.consumer_id, messagePermits=self._granted))

    def delivered(self, delivery: Delivery) -> None:
        """Keep an entry, unless it lies behind the stop or was received before."""
        ledger, number, index = delivery.ledger, delivery.entry, delivery.index
        if index is None or index > INDEX_MAX:
            self._broken = UnsupportedFeatureError(UNNUMBERED)
            self._arrived.set()
            return
        if len(self._entries) > 2 * PERMITS:
            raise RemoteProtocolError(f"the broker sent more of {self._topic} than it was asked for")
        if index < self._received:
            return
        first = self._received
        if (ledger, number) != self._next_place:
            # It is the first entry, or entries before it were removed: only the entry says where it begins.
            by_hashes = self.bucket_hashes is not None
            first = max(index - _claimed_messages(delivery.data, by_hashes) + 1, 0)
        if first >= self._stop:
            # The store may have lost messages before the stop; none is left that could still arrive.
            self._stop_passed = True
            self._arrived.set()
            return
        self._received, self._next_place = index + 1, (ledger, number + 1)
        stored_ms = delivery.broker_timestamp or 0
        self._entries.append(RawEntry(first, index - first + 1, ledger, number, stored_ms, delivery.data))
        self._arrived.set()

    def connection_lost(self) -> None:
        super().connection_lost()
        self._arrived.set()

    async def close(self) -> None:
        """Stop reading; a call that waits raises AlreadyClosedError. Does not wait for the broker."""
        self._closed = True
        self.leave()
        self._arrived.set()


def _claimed_messages(entry: bytes, by_hashes: bool) -> int:
    """The messages that an entry claims; 1 if the claim cannot be true or cannot be read.

    A broker that leaves payloads out, `by_hashes`, leaves out only those of entries that claim the truth.
    """
    try:
        claimed = read_outer(entry).num_messages
        if by_hashes and metadata_span(entry)[1] == len(entry):
            return min(max(claimed, 1), ENTRY_MESSAGES_MAX)
    except AnabranchError:
        return 1
    return permits_for(claimed, entry) if claimed > 0 else 1
