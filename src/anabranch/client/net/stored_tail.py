"""Reads the last entries of a sealed topic, to find out which entries of a producer it has stored.

A broker of Apache Pulsar accepts no producer on a terminated topic, and its refusal of an entry does not mean
that the entry is not stored. The entries that a producer is in doubt about can only lie behind the last one
that was confirmed. This module must not know what producers do with the answer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, NamedTuple

from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.place_search import Place, end_of_empty, last_place, place_of
from anabranch.client.net.subscribing import end_consumer
from anabranch.errors import AnabranchError, NotConnectedError, OperationTimeoutError, UnknownServerError
from anabranch.protocol.chunks import chunk_in
from anabranch.protocol.claims import permits_for
from anabranch.protocol.commands import NO_ID, Delivery
from anabranch.protocol.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb

PERMITS: Final = 10_000
"""Messages that the broker may send before the reading asks for more."""

BEFORE_ALL: Final = (-1, -1)


class TailEntry(NamedTuple):
    """An entry of one producer, or the last chunk of a message that is stored whole."""

    place: Place
    sequence_id: int


class StoredTail:
    """The entries of one producer behind a place of a sealed topic, as far as they were read.

    Another reading after a failed one goes on where that one ended.
    """

    def __init__(self, pool: ConnectionPool, topic: str, producer: str, after: Place) -> None:
        self.pool = pool
        self.topic = topic
        self.after = after
        """Everything up to this place is read, or was not asked for."""
        self.found: list[TailEntry] = []
        self._producer = producer
        self._message = "", 0
        """The message in chunks that is read now, and the number of its chunks so far."""

    def add(self, place: Place, data: bytes) -> int:
        """Note the next entry of the topic; returns the messages that it claims to have."""
        messages = 1
        # An entry that cannot be read is none of this producer's.
        with suppress(AnabranchError):
            outer = read_outer(data)
            messages = outer.num_messages
            is_own = place > self.after and outer.producer_name == self._producer
            if is_own and (not outer.chunked or self._is_last_chunk(data)):
                self.found.append(TailEntry(place, outer.sequence_id))
        self.after = max(self.after, place)
        return messages

    def _is_last_chunk(self, data: bytes) -> bool:
        """Return whether all chunks of a message follow each other up to this one, as consumers want them.

        A message that was sent again after a lost connection may begin several times.
        """
        chunk = chunk_in(data)
        uuid, count = self._message
        follows = chunk.number == count if chunk.uuid == uuid else False
        self._message = chunk.uuid, chunk.number + 1 if follows or chunk.number == 0 else 0
        return self._message[1] == chunk.total


async def stored_since(tail: StoredTail, connection: BrokerConnection) -> list[TailEntry]:
    """Read the topic to its end and return the entries of the producer; raises the broker's refusal.

    Raises OperationTimeoutError when the broker sends no entry for the time of an operation.
    """
    reading = _TailReading(tail, connection)
    try:
        await reading.begin()
        while not reading.ended.done():
            reached = tail.after
            await asyncio.wait([reading.ended], timeout=tail.pool.operation_timeout_s)
            if not reading.ended.done() and tail.after == reached:
                raise OperationTimeoutError(f"{connection.peer} did not send the end of {tail.topic} in time")
        await reading.ended
    finally:
        reading.leave()
    return tail.found


class _TailReading:
    """A reader of one topic from a place on up to its end."""

    def __init__(self, tail: StoredTail, connection: BrokerConnection) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tail = tail
        self._pool = tail.pool
        self._connection = connection
        self._last: Place = BEFORE_ALL
        self._consumer_id = self._pool.next_id()
        self._returned = 0

    async def begin(self) -> None:
        """Subscribe, ask where the topic ends, and let the broker send."""
        pool, connection, topic = self._pool, self._connection, self._tail.topic
        subscribe = pb.CommandSubscribe(
            topic=topic,
            subscription=f"reader-{pool.rng.getrandbits(64):016x}",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=self._consumer_id,
            request_id=pool.next_id(),
            durable=False,
            force_topic_creation=False,
        )
        ledger, entry = self._tail.after
        first = pb.MessageIdData(ledgerId=ledger, entryId=entry) if ledger >= 0 else _EARLIEST
        subscribe.start_message_id.CopyFrom(first)
        connection.consumers[self._consumer_id] = self
        try:
            await connection.request(subscribe, pb.CommandSuccess, pool.operation_timeout_s)
        except UnknownServerError:
            if ledger >= 0 or await end_of_empty(pool, connection, topic) is None:
                raise
            self._end()
            return
        ask = pb.CommandGetLastMessageId(consumer_id=self._consumer_id, request_id=pool.next_id())
        answer = await connection.request(ask, pb.CommandGetLastMessageIdResponse, pool.operation_timeout_s)
        self._last = place_of(answer.last_message_id)
        if self._last[1] < 0:
            # The topic is empty, or an empty ledger follows its last entry.
            self._last = await last_place(pool, connection, topic) or BEFORE_ALL
        if self._last <= self._tail.after:
            self._end()
            return
        connection.send(pb.CommandFlow(consumer_id=self._consumer_id, messagePermits=PERMITS))

    def delivered(self, delivery: Delivery) -> None:
        place = delivery.ledger, delivery.entry
        messages = self._tail.add(place, delivery.data)
        if place >= self._last:
            self._end()
            return
        self._returned += permits_for(messages, delivery.data)
        if self._returned * 2 >= PERMITS:
            permits, self._returned = self._returned, 0
            self._connection.send(pb.CommandFlow(consumer_id=self._consumer_id, messagePermits=permits))

    def reached_end(self) -> None:
        self._end()

    def active_changed(self, active: bool) -> None:
        """Ignored: a reader has its subscription alone."""

    def closed_by_broker(self) -> None:
        self.connection_lost()

    def connection_lost(self) -> None:
        if not self.ended.done():
            self.ended.set_exception(
                NotConnectedError(f"the connection was lost while reading {self._tail.topic}")
            )
            self.ended.exception()

    def leave(self) -> None:
        end_consumer(self._connection, self._consumer_id, self._pool.next_id())

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


_EARLIEST: Final = pb.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)
