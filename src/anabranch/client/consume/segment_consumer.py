"""One segment as a consumer sees it: a subscription that comes back, permits, and acknowledgements that
arrive.

Acknowledgements always ask for an answer, and are sent again after a lost connection until one has come,
before the broker delivers anything new. Messages that the application holds are not handed out a second time
to the same consumer when the broker, after a lost connection, delivers them again. Who reads which segment,
and in which order messages of different segments are handed out, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from anabranch.aio import TaskRegistry
from anabranch.client.decide.acknowledgements import Acknowledgements, LedgerEntry
from anabranch.client.decide.ordering import before_first, covers
from anabranch.client.decide.permits import Permits
from anabranch.client.message import Received
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.segment_owner import ATTACH, SegmentOwner
from anabranch.client.options import log
from anabranch.client.schema import Codec
from anabranch.errors import AlreadyClosedError, AnabranchError, NotConnectedError
from anabranch.model.ids import MessageId
from anabranch.model.ranges import HashRange
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import MANAGED, pairs


@dataclass(frozen=True, slots=True)
class Attachment:
    """How a consumer subscribes to segments."""

    subscription: str
    kind: pb.CommandSubscribe.SubType.ValueType
    consumer_name: str
    initial_position: pb.CommandSubscribe.InitialPosition.ValueType = pb.CommandSubscribe.Latest
    durable: bool = True
    priority: int = 0
    bucket_ranges: tuple[HashRange, ...] = ()
    """Set when the segment is shared by buckets."""
    generation: int | None = None
    """Of the assignment that gave the segment, where somebody assigns it."""
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)


class ConsumerHome(Protocol):
    """What the consumer of a segment needs of the consumer of the topic."""

    pool: ConnectionPool
    tasks: TaskRegistry
    schema: Codec[Any]
    opened_in: int | None

    @property
    def topic(self) -> str: ...
    def ready(self, source: SegmentConsumer) -> None:
        """A segment that had nothing to hand out has now."""
        ...

    def dropped(self, source: SegmentConsumer) -> None:
        """What was not handed out yet is gone; the broker will deliver it again."""
        ...

    def reached_end(self, source: SegmentConsumer) -> None: ...
    def voided(self, source: SegmentConsumer) -> None:
        """Nothing handed out of the segment so far can be acknowledged any more, unless it is already."""
        ...

    def attached_again(self, source: SegmentConsumer) -> None:
        """The subscription was away for a while; it may have been moved by a seek."""
        ...

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        """Whether an error ends the segment's consumer; else it tries again."""
        ...

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None: ...
    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]: ...


class SegmentConsumer:
    """Reads one segment for `home`."""

    def __init__(
        self,
        home: ConsumerHome,
        segment_id: int,
        topic: str,
        attachment: Attachment,
        permits: Permits,
        *,
        url: str | None = None,
        legacy: bool = False,
        start: Callable[[], MessageId] | None = None,
        paused: bool = False,
    ) -> None:
        self.home = home
        self.segment_id = segment_id
        self.topic = topic
        self.attachment = attachment
        self.permits = permits
        """Messages the broker may send ahead of their being handed out."""
        self.entries: deque[Received] = deque()
        """Delivered and not handed out."""
        self.held: dict[LedgerEntry, int] = {}
        """Bits of messages that are here or with the application, neither acknowledged nor given back."""
        self.outstanding: deque[Received] = deque()
        """For cumulative acknowledgement: entries handed out, in order, at least in part not acknowledged."""
        self.unacked: dict[LedgerEntry, int] = {}
        """For single acknowledgement: bits of an entry's messages without one."""
        self.acks = Acknowledgements()
        self.floor: MessageId | None = None
        """Nothing at or before this is handed out."""
        self.released = False
        """Takes no more messages; only acknowledgements are still sent."""
        self.attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = SegmentOwner(home.pool, topic, url)
        self._legacy = legacy
        self._start = start
        self._paused = paused
        self._connection: BrokerConnection | None = None
        self._consumer_id = 0
        self._ack_waiters: list[asyncio.Future[None]] = []
        self._refusals = 0
        """Acknowledgements refused in a row."""
        self._detached = asyncio.Event()
        self._renewed = asyncio.Event()
        self._closed = False
        home.tasks.start(self._run(), f"consume {topic}")

    # As a message's source.

    @property
    def topic_name(self) -> str:
        return self.home.topic

    @property
    def schema(self) -> Codec[Any]:
        return self.home.schema

    def vector(self, number: int) -> tuple[tuple[int, MessageId], ...]:
        return self.home.vector(number)

    # Deliveries.

    def delivered(self, delivery: Delivery) -> None:
        """An entry came; what the application already holds or must not see is left out."""
        entry = Received(self, delivery)
        cost = entry.wanted.bit_count()
        self.permits.use(cost)
        if self.released or self._closed:
            return
        held = self.held.get(entry.position)
        if held:
            entry.wanted &= ~held
        # The broker may have sent the entry before it knew of these acknowledgements.
        entry.wanted &= self.acks.pending(entry.position)
        if self.floor is not None:
            self._trim(entry, self.floor)
        if entry.hidden or not entry.wanted:
            self.give_back(cost)
            return
        self.give_back(cost - entry.wanted.bit_count())
        if self.attachment.durable:
            self.held[entry.position] = self.held.get(entry.position, 0) | entry.wanted
        self.entries.append(entry)
        if len(self.entries) == 1:
            self.home.ready(self)

    def _trim(self, entry: Received, floor: MessageId) -> None:
        ledger, position = entry.position
        if not covers(floor, ledger, position, 0):
            return
        if (ledger, position) == (floor.ledger, floor.entry) and floor.batch_index >= 0:
            entry.wanted &= ~((2 << floor.batch_index) - 1)
        else:
            entry.wanted = 0

    def take(self) -> tuple[Received, bool]:
        """The next entry to hand out, and whether the broker was told to send more."""
        entry = self.entries.popleft()
        self.permits.fit(len(entry.data) / entry.count, emptied=not self.entries)
        return entry, self.give_back(entry.wanted.bit_count())

    def give_back(self, count: int) -> bool:
        """Messages left the buffer; the broker may send as many again. Returns whether it was told so."""
        due = self.permits.give_back(count)
        if not due or self._connection is None or self.released:
            return False
        self._flow(due)
        return True

    def resize(self, size: int) -> None:
        """Hold more messages, or fewer as those at hand leave; what the broker may send follows."""
        self.permits.resize(size)
        if not self._paused:
            self.give_back(0)

    def _flow(self, count: int) -> None:
        if self._connection is not None:
            self.permits.grant(count)
            self._connection.send(pb.CommandFlow(consumer_id=self._consumer_id, messagePermits=count))

    def resume(self) -> None:
        """Let a paused segment begin to send."""
        if self._paused:
            self._paused = False
            self._flow(self.permits.size)

    def reached_end(self) -> None:
        self.home.reached_end(self)

    def release(self) -> None:
        """Hand out nothing more; what was handed out can still be acknowledged."""
        self.released = True
        self.drop()

    def drop(self) -> None:
        """Forget what was not handed out."""
        self.home.dropped(self)
        for entry in self.entries:
            self.let_go(entry.position, entry.wanted)
        self.entries.clear()

    def let_go(self, place: LedgerEntry, bits: int) -> None:
        """These messages may be delivered again."""
        held = self.held.get(place, 0) & ~bits
        if held:
            self.held[place] = held
        else:
            self.held.pop(place, None)

    # Acknowledgements.

    def flush_acks(self) -> None:
        """Send what waits; without a connection it goes first on the next one."""
        connection = self._connection
        if connection is None:
            return
        for ack in self.acks.take(self._consumer_id, self.home.pool.next_id):
            connection.post(ack).add_done_callback(partial(self._ack_answered, ack.request_id))

    def _ack_answered(self, request_id: int, answer: asyncio.Future[Any]) -> None:
        error = answer.exception() if not answer.cancelled() else None
        if isinstance(error, NotConnectedError):
            return
        if error is not None:
            if self.acks.awaits(request_id):
                log.warning("%s refused an acknowledgement: %s", self.topic, error)
                self._refusals += 1
                self._leave()
            return
        if not self.acks.awaits(request_id):
            return
        self._refusals = 0
        self.acks.answered(request_id)
        self._wake_ack_waiters()

    def _wake_ack_waiters(self) -> None:
        if self.acks.confirmed or self._closed:
            waiters, self._ack_waiters = self._ack_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def acks_done(self) -> None:
        """Send what waits and return when the broker has confirmed everything."""
        self.flush_acks()
        while not self.acks.confirmed and not self._closed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._ack_waiters.append(waiter)
            await waiter

    def redeliver(self, places: list[LedgerEntry]) -> None:
        """Ask for entries again; without a connection they come again by themselves."""
        if self._connection is not None and places:
            ids = [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in places]
            self._connection.send(
                pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._consumer_id, message_ids=ids)
            )

    # The connection.

    def closed_by_broker(self) -> None:
        """The broker ended the subscription but not the connection, as it does for a seek: start afresh.

        What the application holds may be delivered again on purpose then, or by another who reads now.
        """
        self.home.voided(self)
        self.held.clear()
        self.outstanding.clear()
        self.unacked.clear()
        self.acks.clear()
        self._lose()

    def connection_lost(self) -> None:
        self._owner.look_up_again()
        self._lose()

    def owned_by(self, url: str | None) -> None:
        """Follow the segment to the broker that a layout names."""
        connection = self._connection
        if self._owner.layout_named(url, connection):
            self._leave()

    def renew(self, generation: int | None) -> None:
        """The segment is assigned again, in a newer generation; an attempt that waits is made at once."""
        if generation != self.attachment.generation:
            self.attachment = replace(self.attachment, generation=generation)
            self._renewed.set()

    def _leave(self) -> None:
        """Let the broker forget the consumer; acknowledgements without an answer go first on the next one."""
        connection = self._connection
        if connection is not None:
            connection.consumers.pop(self._consumer_id, None)
            connection.send(
                pb.CommandCloseConsumer(consumer_id=self._consumer_id, request_id=self.home.pool.next_id())
            )
            self._lose()

    def _lose(self) -> None:
        self._connection = None
        self.acks.take_back()
        self.drop()
        self._wake_ack_waiters()
        self._detached.set()

    async def _run(self) -> None:
        failures = 0
        while not self._closed:
            self._detached.clear()
            try:
                if not await self._owner.attempt(self._attach):
                    continue
                failures = 0
                while self._connection is not None:
                    await self._detached.wait()
                    self._detached.clear()
                if self._refusals and not self._closed:
                    await self._pause(self._refusals - 1)
                continue
            except (AnabranchError, TimeoutError) as error:
                if isinstance(error, AnabranchError) and self.home.is_final(self, error):
                    self._give_up(error)
                    return
                log.debug("%s: %s", self.topic, error)
            self._owner.look_up_again()
            await self._pause(failures)
            failures += 1

    async def _pause(self, failures: int) -> None:
        self._renewed.clear()
        await self._owner.pause(ATTACH.delay(failures, self.home.pool.rng), self._renewed)

    def _give_up(self, error: AnabranchError) -> None:
        self._closed = True
        if not self.attached.done():
            self.attached.set_exception(error)
            self.attached.exception()
        self._wake_ack_waiters()
        self.home.gave_up(self, error)

    async def _attach(self) -> None:
        pool = self.home.pool
        connection = await self._owner.connection()
        if self._closed:
            return
        consumer_id = pool.next_id()
        if self._start is not None:
            self.floor = self._start()
        self.permits.reset()
        connection.consumers[consumer_id] = self
        try:
            reply = await connection.request(
                self._subscribe(consumer_id), pb.CommandSuccess, pool.operation_timeout_s
            )
        except BaseException:
            connection.consumers.pop(consumer_id, None)
            connection.send(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=pool.next_id()))
            raise
        if self._closed:
            # Closed while the broker was still making it: there nobody else would take it away.
            connection.consumers.pop(consumer_id, None)
            connection.send(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=pool.next_id()))
            return
        if reply.HasField("incarnation"):
            self.home.opened_in = reply.incarnation
        if not connection.open or connection.consumers.get(consumer_id) is not self:
            return
        self._connection = connection
        self._consumer_id = consumer_id
        self.flush_acks()
        if not self.released and not self._paused:
            self._flow(self.permits.size)
        if self.attached.done():
            self.home.attached_again(self)
        else:
            self.attached.set_result(None)

    def _subscribe(self, consumer_id: int) -> pb.CommandSubscribe:
        how = self.attachment
        properties = dict(how.properties)
        if self._legacy:
            properties[MANAGED] = "true"
        command = pb.CommandSubscribe(
            topic=self.topic,
            subscription=how.subscription,
            subType=how.kind,
            consumer_id=consumer_id,
            request_id=self.home.pool.next_id(),
            consumer_name=how.consumer_name,
            priority_level=how.priority,
            durable=how.durable,
            initialPosition=how.initial_position,
            metadata=pairs(properties),
            subscription_properties=pairs(how.subscription_properties),
            generation=how.generation,
            opened_in=self.home.opened_in,
        )
        if how.bucket_ranges:
            command.keySharedMeta.keySharedMode = pb.STICKY
            command.keySharedMeta.entryBucketDispatch = True
            for bucket in how.bucket_ranges:
                command.keySharedMeta.hashRanges.add(start=bucket.start, end=bucket.end)
        if self.floor is not None:
            command.start_message_id.ledgerId = self.floor.ledger & (2**64 - 1)
            command.start_message_id.entryId = self.floor.entry & (2**64 - 1)
        return command

    async def last_message_id(self) -> MessageId:
        """The last message stored in the segment now, or the place before the first. Needs a connection."""
        await asyncio.shield(self.attached)
        connection = self._connection
        if connection is None:
            raise NotConnectedError(f"{self.topic} is not connected")
        reply = await connection.request(
            pb.CommandGetLastMessageId(consumer_id=self._consumer_id, request_id=self.home.pool.next_id()),
            pb.CommandGetLastMessageIdResponse,
            self.home.pool.operation_timeout_s,
        )
        last = reply.last_message_id
        next_index = reply.next_index if reply.HasField("next_index") else -1
        if last.ledgerId >= 2**63 or last.entryId >= 2**63:
            return before_first(self.segment_id, next_index)
        return MessageId(
            self.segment_id, last.ledgerId, last.entryId, last.batch_index, next_index=next_index
        )

    async def close(self) -> None:
        """Leave the segment; acknowledgements should be done before."""
        if self._closed:
            return
        self._closed = True
        self.entries.clear()
        connection, self._connection = self._connection, None
        if not self.attached.done():
            self.attached.set_exception(AlreadyClosedError("the consumer was closed"))
            self.attached.exception()
        self._wake_ack_waiters()
        self._detached.set()
        if connection is None:
            return
        connection.consumers.pop(self._consumer_id, None)
        try:
            await connection.request(
                pb.CommandCloseConsumer(consumer_id=self._consumer_id, request_id=self.home.pool.next_id()),
                pb.CommandSuccess,
                self.home.pool.operation_timeout_s,
            )
        except AnabranchError as error:
            log.debug("%s: closing the consumer: %s", self.topic, error)
