"""Subscriptions without a cursor, for readers of whole entries and for questions about the end of a topic.

This module knows neither message indexes nor places of entries: a reader says where to begin, and decides
which of the entries that arrive it keeps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.ends import ConsumerEnd
from anabranch.client.net.subscribing import begin_consumer, end_consumer
from anabranch.client.options import Seconds, optional_seconds
from anabranch.errors import (
    NotConnectedError,
    OperationTimeoutError,
)
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import BUCKET_HASHES, START_INDEX

E = TypeVar("E")


class RawSubscription:
    """A subscription to one segment without a cursor, which requests no messages by itself."""

    def __init__(self, pool: ConnectionPool, topic: str, name: str | None = None) -> None:
        """Without a name, each call of `subscribe` makes a new one up."""
        self._pool = pool
        self._topic = topic
        self._name = name
        self.bucket_hashes: HashRange | None = None
        """Entries without a message of these bucket hashes come without their payload; None for all."""
        self.connection: BrokerConnection | None = None
        self.consumer_id = 0
        self.log_id: int | None = None
        """The log that was subscribed to last; None if the broker does not name it."""

    async def subscribe(
        self,
        start_index: int | None,
        start_id: pb.MessageIdData | None = None,
        end: ConsumerEnd | None = None,
    ) -> BrokerConnection:
        """Subscribe from a message index on, from the entry of a message id on, or at the end of the topic.

        `end` receives what the broker sends, and has to pass a lost connection on to `connection_lost`.
        Without one, everything but a lost connection is ignored.
        """
        # The connection calls the reader itself, because a step in between would cost a call per entry.
        receiver = self if end is None else end
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
        if (hashes := self.bucket_hashes) is not None:
            command.metadata.add(key=BUCKET_HASHES, value=f"{hashes.start}-{hashes.end}")
        if start_id is not None:
            command.start_message_id.CopyFrom(start_id)
        reply = await begin_consumer(pool, connection, command, receiver)
        if connection.consumers.get(consumer_id) is not receiver:
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
        """End the subscription to a segment whose tail is no longer needed."""
        subscription = self._subscriptions.pop(topic, None)
        if subscription is not None:
            subscription.leave()

    async def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        for topic in list(self._subscriptions):
            self.forget(topic)


class EntryReader(Generic[E]):
    """Reads the entries of one topic, many at a time, through a raw subscription."""

    def __init__(self, pool: ConnectionPool, topic: str) -> None:
        self._pool = pool
        self._topic = topic
        self.subscription = RawSubscription(pool, topic)
        self._entries: deque[E] = deque()
        self._arrived = asyncio.Event()
        self._granted = self._returned = 0
        self._closed = False

    async def read(self, timeout: Seconds | None = None) -> list[E]:
        """Wait for an entry and return all that have arrived, or an empty list at the end.

        Raises OperationTimeoutError if none arrives within `timeout`, by default the operation timeout.
        """
        limit = optional_seconds("timeout", timeout)
        limit_s = self._pool.operation_timeout_s if limit is None else limit
        deadline = Deadline(limit_s)
        if not await deadline.allow(self._wait_for_entries(deadline)):
            connection = self.subscription.connection
            where = f" at {connection.peer}" if connection is not None else ""
            raise OperationTimeoutError(f"{self._topic}{where} delivered no message within {limit_s:g} s")
        return self._take_entries()

    async def _wait_for_entries(self, deadline: Deadline) -> None:
        """Return when an entry has arrived, or the end is reached."""
        raise NotImplementedError

    def _take_entries(self) -> list[E]:
        """Take all entries that have arrived."""
        raise NotImplementedError

    def _grant(self, connection: BrokerConnection, permits: int) -> None:
        """Let the broker send this many messages, instead of those granted before."""
        self._granted, self._returned = permits, 0
        consumer_id = self.subscription.consumer_id
        connection.send(pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))

    def _renew(self, permits: int) -> None:
        """Grant used permits again, once they make up half of the grant.

        Half a grant is left while the command is on its way, so the broker need not pause.
        """
        self._returned += permits
        connection, consumer_id = self.subscription.connection, self.subscription.consumer_id
        if connection is not None and self._returned * 2 >= self._granted:
            connection.send(pb.CommandFlow(consumer_id=consumer_id, messagePermits=self._returned))
            self._returned = 0

    def delivered(self, delivery: Delivery) -> None:
        """Keep an entry that the broker sent."""
        raise NotImplementedError

    def reached_end(self) -> None:
        """Ignored: the caller says where to stop."""

    def active_changed(self, active: bool) -> None:
        """Ignored: a reader has its subscription alone."""

    def closed_by_broker(self) -> None:
        self.connection_lost()

    def connection_lost(self) -> None:
        self.subscription.connection_lost()
        self._arrived.set()

    async def close(self) -> None:
        """Stop reading without waiting for the broker. A pending `read` raises AlreadyClosedError."""
        self._closed = True
        self.subscription.leave()
        self._arrived.set()
