"""Raw access to topics of brokers that do not number messages, as Apache Pulsar: entries by their place.

Like `segment_reader`, with ledger and entry instead of message indexes. The places of a topic are ordered.
Entries of a ledger follow each other without gaps, except those that the broker hides, such as markers of
transactions. How many entries an old ledger has, no command of the protocol tells.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from anabranch.client.bulk.raw_subscription import EntryReader, OpenTails, RawSubscription
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.place_search import LastMessage, end_of_empty, last_message, place_at_time, place_of
from anabranch.errors import AlreadyClosedError, AnabranchError, RemoteProtocolError, UnknownServerError
from anabranch.protocol.commands import NO_ID, Delivery
from anabranch.protocol.entry.claims import permits_for
from anabranch.protocol.entry.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb

PERMITS = 5_000
"""Messages that the broker may send before the reader asks for more."""

SILENCE_S = 1.0
"""After this time without an entry the reader asks whether the entries it waits for are gone."""

EARLIEST = pb.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)


class EntryPlace(NamedTuple):
    """The place of a stored entry; the entry is -1 before the first one of its ledger."""

    ledger: int
    entry: int


BEYOND = EntryPlace(2**63, 0)
"""Behind every entry."""


class PlacedEntry(NamedTuple):
    """An entry as it is stored."""

    place: EntryPlace
    message_count: int
    data: bytes


class PlaceTail(NamedTuple):
    """The entries in a topic now: from `first` on up to `last`, which is included."""

    first: EntryPlace
    last: EntryPlace
    """Smaller than `first` when the topic is empty."""
    last_messages: int
    """Messages in the last entry."""


class PlaceReader(EntryReader[PlacedEntry]):
    """Reads the entries of one topic from `start` on up to `stop`, which is not included.

    `start` None means the first stored entry. `read` returns no entries at the end. After a lost connection
    the reader goes on with the next entry.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        start: EntryPlace | None,
        stop: EntryPlace | None,
        permits: int = PERMITS,
    ) -> None:
        """Without `stop` the reader never ends; `permits` messages may arrive before they are read."""
        super().__init__(pool, topic)
        self._next = start
        self._stop = stop or BEYOND
        self._permits = permits
        self._received = start or EntryPlace(-1, -1)
        """The place that follows the last entry received."""
        self._ended = False
        self.stop_passed = False
        """Whether everything before `stop` was received; False when the last entries are gone."""

    async def _wait_for_entries(self, deadline: Deadline) -> None:
        while not self._entries:
            if self._closed:
                raise AlreadyClosedError("the reader is closed; open another one")
            if self._ended:
                self.subscription.leave()
                return
            if self.subscription.connection is None:
                what = f"reading {self._topic}"
                await self._pool.retry(self._attach, what, within_s=deadline.left_s)
            self._arrived.clear()
            connection = self.subscription.connection
            if not self._entries and connection is not None and not self._ended:
                try:
                    async with asyncio.timeout(SILENCE_S):
                        await self._arrived.wait()
                except TimeoutError:
                    await self._end_if_gone(connection)

    async def _end_if_gone(self, connection: BrokerConnection) -> None:
        """End when no entry is left that could still arrive before the stop."""
        try:
            tail = await _ask_tail(self._pool, connection, self.subscription.consumer_id, self._topic)
        except AnabranchError as error:
            if not error.retryable:
                raise
            return
        if not self._entries and (tail.last < self._received or tail.last.entry < 0):
            self._ended = True

    def _take_entries(self) -> list[PlacedEntry]:
        taken = list(self._entries)
        if not taken:
            return taken
        self._entries.clear()
        self._next = _after(taken[-1].place)
        if not self._ended:
            self._renew(sum(permits_for(entry.message_count, entry.data) for entry in taken))
        return taken

    async def _attach(self) -> None:
        self._entries.clear()
        self._received = self._next or EntryPlace(-1, -1)
        start = EARLIEST
        if self._next is not None:
            start = pb.MessageIdData(ledgerId=self._next.ledger, entryId=self._next.entry)
        connection = await self.subscription.subscribe(None, start, self)
        self._grant(connection, self._permits)

    def delivered(self, delivery: Delivery) -> None:
        """Keep an entry, unless it lies behind the stop or was received before."""
        place = EntryPlace(delivery.ledger, delivery.entry)
        if len(self._entries) > 2 * PERMITS:
            raise RemoteProtocolError(f"the broker sent more of {self._topic} than it was asked for")
        if place < self._received or self._ended:
            return
        if place < self._stop:
            self._received = _after(place)
            self._entries.append(PlacedEntry(place, _claimed_messages(delivery.data), delivery.data))
        if _after(place) >= self._stop:
            self._ended = self.stop_passed = True
        self._arrived.set()


class PlaceTails(OpenTails):
    """Asks for the tails of topics repeatedly, through one subscription per topic."""

    async def tail(self, topic: str) -> PlaceTail:
        """The entries in a topic now."""
        if self._closed:
            raise AlreadyClosedError("this PlaceTails is closed; open another one")
        return await self._pool.retry(lambda: self._ask(topic), f"asking for the tail of {topic}")

    async def tails(self, topics: list[str]) -> dict[str, PlaceTail]:
        """The entries in several topics, asked at the same time."""
        found = await asyncio.gather(*(self.tail(topic) for topic in topics))
        return dict(zip(topics, found, strict=True))

    async def at_time(self, topic: str, time_ms: int) -> EntryPlace:
        """The first entry that was published at this time or later, or the place behind the last entry."""
        return await self._pool.retry(lambda: self._seek(topic, time_ms), f"looking for a time in {topic}")

    async def _seek(self, topic: str, time_ms: int) -> EntryPlace:
        connection = await self._pool.connection_for(topic)
        return EntryPlace(*await place_at_time(self._pool, connection, topic, time_ms))

    async def _ask(self, topic: str) -> PlaceTail:
        subscription = self._subscriptions.get(topic)
        connection = None if subscription is None else subscription.connection
        if subscription is None or connection is None:
            subscription = RawSubscription(self._pool, topic)
            try:
                # The cursor of a reader at the earliest entry stands before the first ledger that is stored.
                connection = await subscription.subscribe(None, EARLIEST)
            except UnknownServerError:
                end = await end_of_empty(self._pool, await self._pool.connection_for(topic), topic)
                if end is None:
                    raise
                return PlaceTail(EntryPlace(*end), EntryPlace(-1, -1), 1)
            self._subscriptions[topic] = subscription
        return await _ask_tail(self._pool, connection, subscription.consumer_id, topic)


async def _ask_tail(
    pool: ConnectionPool, connection: BrokerConnection, consumer_id: int, topic: str
) -> PlaceTail:
    reply = await connection.request(
        pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=pool.next_id()),
        pb.CommandGetLastMessageIdResponse,
        pool.operation_timeout_s,
    )
    if not reply.HasField("consumer_mark_delete_position"):
        raise RemoteProtocolError(f"the broker does not tell where {topic} begins")
    first = _after(EntryPlace(*place_of(reply.consumer_mark_delete_position)))
    last = LastMessage(*place_of(reply.last_message_id), reply.last_message_id.batch_index)
    if last.entry < 0:
        # The topic is empty, or sealed with an empty ledger at its end.
        last = await last_message(pool, connection, topic) or last
    return PlaceTail(first, EntryPlace(last.ledger, last.entry), max(1, last.batch_index + 1))


def _after(place: EntryPlace) -> EntryPlace:
    return EntryPlace(place.ledger, place.entry + 1)


def _claimed_messages(entry: bytes) -> int:
    """The messages that an entry claims; 1 if the claim cannot be read."""
    try:
        return max(1, read_outer(entry).num_messages)
    except AnabranchError:
        return 1
