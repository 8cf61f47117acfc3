"""The consumer of one segment: it subscribes, follows the segment to its owner, and buffers entries.

After a lost connection it subscribes again, and leaves out messages that the application already holds. It
knows nothing of the other segments: it reports what happens to the `SegmentEvents` it was given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from google.protobuf.message import Message as ProtoMessage

from anabranch.aio import mark_retrieved
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.segments.attachment import Attachment, SegmentAddress
from anabranch.client.consume.segments.chunk_intake import ChunkIntake
from anabranch.client.consume.segments.segment_link import SegmentLink
from anabranch.client.decide.connecting.reconnection import ReconnectEvent, ReconnectPhase
from anabranch.client.decide.consuming.acknowledgements import Acknowledgements, LedgerEntry
from anabranch.client.decide.consuming.ordering import before_first, bits_after
from anabranch.client.decide.consuming.permits import Intake, Permits
from anabranch.client.net.closing import farewell
from anabranch.client.net.place_search import last_message
from anabranch.client.net.reconnector import Reconnector, SegmentOwner
from anabranch.client.net.subscribing import begin_consumer, end_consumer
from anabranch.client.net.topics.schemas import describe_schema
from anabranch.client.options import log
from anabranch.client.received import Received
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConsumerAssignError,
    ConsumerBusyError,
    NotConnectedError,
    RemoteProtocolError,
)
from anabranch.model.acks import bits_at
from anabranch.model.ids import MessageId
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb

_RELEASED = Intake.RELEASED

GIVE_BACK_S = 1.0
"""Pause before chunks whose message is with several consumers go back to the broker."""


class SegmentEvents(Protocol):
    """The events that the consumers of segments report to the consumer of the topic."""

    def ready(self, source: SegmentConsumer) -> None:
        """The first entry has arrived in an empty buffer."""

    def dropped(self, source: SegmentConsumer) -> None:
        """Buffered entries are about to be dropped; the broker will deliver them again."""

    def voided(self, source: SegmentConsumer) -> None:
        """Messages handed out so far, unless confirmed, cannot be acknowledged any more."""

    def reached_end(self, source: SegmentConsumer) -> None:
        """The subscription has acknowledged a sealed segment to its end."""

    def active_changed(self, source: SegmentConsumer) -> None:
        """A Failover subscription gave the segment to this consumer, or took it away."""

    def attached_again(self, source: SegmentConsumer) -> None:
        """The segment is subscribed to again; a seek may have moved the subscription meanwhile."""

    def is_final(self, source: SegmentConsumer, error: AnabranchError) -> bool:
        """An attempt failed: return whether that ends the segment's consumer. If not, it tries again."""

    def gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        """The segment's consumer has ended because of an error."""


class FirstAnswer:
    """The first answer of a segment's owner to a consumer that subscribes.

    It is known when the first subscription succeeded, failed for good, or met another consumer.
    """

    def __init__(self) -> None:
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attached.add_done_callback(mark_retrieved)
        self._came = asyncio.Event()

    @property
    def decided(self) -> bool:
        """Whether the first subscription succeeded, or the consumer ended before."""
        return self._attached.done()

    @property
    def accepted(self) -> bool:
        """Whether the first subscription succeeded."""
        return self._attached.done() and self._attached.exception() is None

    def accept(self) -> None:
        """Note that the first subscription succeeded."""
        self._attached.set_result(None)
        self._came.set()

    def end(self, error: AnabranchError) -> None:
        """Note the error that ended the consumer, unless the first subscription succeeded before."""
        if not self._attached.done():
            self._attached.set_exception(error)
        self._came.set()

    def wait_for_others(self) -> None:
        """Note that another consumer holds the segment, for how long is unknown."""
        self._came.set()

    async def success(self) -> None:
        """Return when the first subscription has succeeded; raises the error that ended the consumer."""
        await asyncio.shield(self._attached)

    async def any(self) -> None:
        """As `success`, but return as well when another consumer holds the segment."""
        await self._came.wait()
        if self._attached.done():
            self._attached.result()


class SegmentConsumer:
    """Reads one segment for its `owner`, the consumer of the topic."""

    def __init__(
        self,
        owner: ConsumerContext,
        events: SegmentEvents,
        address: SegmentAddress,
        attachment: Attachment,
        permits: Permits,
    ) -> None:
        self.owner = owner
        self.schema, self.vector = owner.schema, owner.vector
        self.topic, self.segment_id = address.topic, address.segment_id
        self.attachment, self.permits = attachment, permits
        self.intake = Intake.PAUSED if attachment.paused else Intake.OPEN
        self.entries: deque[Received] = deque()
        """Entries that were delivered and not handed out."""
        self.stale: list[Callable[[Received], bool]] = []
        """Predicates for entries that the broker keeps now, although it may have sent them before."""
        self.outstanding: deque[Received] = deque()
        """For cumulative acknowledgement: entries handed out, in order, that are not fully acknowledged."""
        self.noted: list[Received] = []
        """Entries with messages that the application acknowledged since the entry's bits were last changed.

        The bits of an entry change once for all of its messages, when `held`, `unacked` or `acks` are used.
        """
        self.floor: MessageId | None = None
        """Messages at or before this position are not handed out."""
        self.active = True
        """Whether the broker sends messages; with Failover it may send them to another consumer."""
        self.first_answer = FirstAnswer()
        self.problem: Exception | None = None
        """Why the last attempt to subscribe failed."""
        self.chunks = ChunkIntake(owner.loop, self._ask_for_end, self._drop_chunks)
        self._events = events
        self._address = address
        self._held: dict[LedgerEntry, int] = {}
        self._unacked: dict[LedgerEntry, int] = {}
        self._pool = owner.pool
        self._connect()
        owner.tasks.start(self._reconnector.run(), f"consume {address.topic}")

    def _connect(self) -> None:
        """Make the parts that find the owner of the segment, and reach it again after each loss."""
        self._owner = SegmentOwner(self._pool, self.topic, self._address.owner_url)
        self._reconnector = Reconnector(
            self.topic, self._pool.rng, self._attempt, self._failed, self._owner.__str__
        )
        self._life = self._reconnector.life
        refused = partial(self._leave, ReconnectEvent.REFUSED)
        self._link = SegmentLink(self._pool, self.topic, self._reconnector, refused)

    # Messages that the application has, or has acknowledged.

    @property
    def held(self) -> dict[LedgerEntry, int]:
        """Bits of messages in the buffer or with the application, neither acknowledged nor given back."""
        if self.noted:
            self._settle()
        return self._held

    @property
    def unacked(self) -> dict[LedgerEntry, int]:
        """For single acknowledgement: bits of an entry's messages that are not acknowledged."""
        if self.noted:
            self._settle()
        return self._unacked

    @property
    def acks(self) -> Acknowledgements:
        """The acknowledgements, with all that were noted."""
        if self.noted:
            self._settle()
        return self._link.acks

    def _settle(self) -> None:
        """Acknowledge the noted messages, entry by entry."""
        noted, self.noted = self.noted, []
        for entry in noted:
            indexes, entry.noted, entry.noted_by = entry.noted, [], None
            self.acknowledge_bits(entry.position, _bits_of(indexes), entry.whole)

    def acknowledge_bits(self, place: LedgerEntry, bits: int, whole: int) -> None:
        """Acknowledge messages of an entry; `whole` are the bits of all its messages."""
        left = self.unacked.get(place, whole) & ~bits
        if left:
            self.unacked[place] = left
        else:
            self.unacked.pop(place, None)
        self.unhold(place, bits)
        self.acknowledge(place, left)

    def acknowledge(self, place: LedgerEntry, left: int) -> None:
        """Acknowledge an entry, except its messages in `left`; a message in chunks with all of them."""
        self.acks.add(place, left)
        if not left:
            for part in self.chunks.places.pop(place, ()):
                self.acks.add(part, 0)

    def flush_acks(self) -> None:
        """Send waiting acknowledgements, if there is a connection."""
        if self.noted:
            self._settle()
        self._link.flush()

    async def acks_confirmed(self) -> None:
        """Send waiting acknowledgements and return when all are confirmed, or the consumer has ended."""
        self.flush_acks()
        while not self.acks.confirmed and not self._life.ended:
            await self._link.changed()

    def unhold(self, place: LedgerEntry, bits: int) -> None:
        """Let the broker deliver these messages again."""
        held = self.held.get(place, 0) & ~bits
        if held:
            self.held[place] = held
        else:
            self.held.pop(place, None)

    def redeliver(self, places: Iterable[LedgerEntry], park: str | None = None) -> None:
        """Ask for entries again, of messages in chunks for all chunks; see `SegmentLink.redeliver`."""
        chunks = [part for place in places for part in self.chunks.places.pop(place, (place,))]
        self._link.redeliver(chunks, park)

    def when_carried_out(self, done: Callable[[], None]) -> None:
        """Call `done` when the broker has carried out every command so far, or the connection is lost."""
        self._link.when_carried_out(done)

    # Deliveries.

    def delivered(self, delivery: Delivery) -> None:
        """Buffer an entry without the messages that the application holds or has acknowledged."""
        # Called for each entry. After a reconnect the broker delivers everything again that it has no
        # acknowledgement for, which includes messages that the application is still working on and messages
        # whose acknowledgement is on its way. Both are left out bit by bit here; without that, a connection
        # lost in the middle of a batch would hand out its first messages twice.
        if len(self.entries) > self.permits.entries_max:
            raise RemoteProtocolError(f"the broker sent more of {self.topic} than it was asked for")
        entry = self._received(delivery)
        if entry is None:
            return
        cost = entry.wanted.bit_count() + entry.surplus
        self.permits.use(cost)
        if self.intake is _RELEASED:
            return
        position, held = entry.position, self.held
        known = held.get(position, 0)
        # The broker may have sent the entry before these acknowledgements reached it.
        wanted = entry.wanted & ~known & self.acks.pending(position)
        if self.floor is not None:
            wanted &= bits_after(self.floor, *position)
        entry.wanted = wanted
        if not wanted or (self.stale and any(is_stale(entry) for is_stale in self.stale)):
            self.give_back(cost)
            return
        if surplus := cost - wanted.bit_count():
            self.give_back(surplus)
        if self.attachment.durable:
            held[position] = known | wanted
        self.entries.append(entry)
        if len(self.entries) == 1:
            self._events.ready(self)

    def _received(self, delivery: Delivery) -> Received | None:
        """Return the entry, or None for a chunk, except for the last one: it is the place of the message."""
        chunk = Received(self, delivery)
        self.chunks.newest = chunk.position
        if not chunk.chunked or not self.attachment.durable or self.intake is _RELEASED:
            return chunk
        whole = self.chunks.add(chunk.position, chunk.data)
        if whole is None:
            self.permits.use(1)
            self.give_back(1)
            return None
        entry = Received(self, delivery._replace(data=whole.entry))
        entry.parts = whole.parts
        return entry

    def _ask_for_end(self) -> asyncio.Future[Any] | None:
        """Ask the broker whether it has sent all entries of a sealed segment; None if it cannot say that.

        With a Shared subscription other consumers may have the other chunks.
        """
        connection = self._link.connection
        if self.attachment.kind == pb.CommandSubscribe.Shared or connection is None or not connection.is_ours:
            return None
        return self._link.ask_for_last_message(connection)

    def _drop_chunks(self, orphans: list[LedgerEntry]) -> None:
        """Acknowledge chunks of messages that will never be complete.

        A Shared subscription may have given the other chunks to other consumers; there they go back.
        """
        if self.attachment.kind == pb.CommandSubscribe.Shared:
            self.owner.loop.call_later(GIVE_BACK_S, self.redeliver, orphans)
            return
        for place in orphans:
            log.warning("%s: the chunk %d:%d belongs to no whole message", self.topic, *place)
            self.acks.add(place, 0)
        self.flush_acks()

    def take(self) -> tuple[Received, bool]:
        """Return the next entry to hand out, and whether a command asked the broker for more messages."""
        entry = self.entries.popleft()
        self.permits.fit(len(entry.data) / entry.count, emptied=not self.entries)
        return entry, self.give_back(entry.wanted.bit_count())

    def give_back(self, count: int) -> bool:
        """Note that messages left the buffer; True when a command asked the broker for more."""
        due = self.permits.give_back(count)
        if not due or self._link.connection is None or self.intake is _RELEASED:
            return False
        self._ask_for(due)
        return True

    def _ask_for(self, count: int) -> None:
        if self._link.connection is not None:
            self.permits.grant(count)
            self._link.ask_for(count)

    def resize(self, size: int) -> None:
        """Buffer up to `size` messages from now on."""
        self.permits.resize(size)
        if self.intake is Intake.OPEN:
            self.give_back(0)

    def resume(self) -> None:
        """Ask a paused segment for messages."""
        if self.intake is Intake.PAUSED:
            self.intake = Intake.OPEN
            self._ask_for(self.permits.size)

    @property
    def released(self) -> bool:
        return self.intake is _RELEASED

    def release(self) -> None:
        """Hand out nothing more; messages handed out before can still be acknowledged."""
        self.intake = _RELEASED
        self._drop_entries()

    def _drop_entries(self) -> None:
        self._events.dropped(self)
        self.chunks.clear()
        for entry in self.entries:
            self.unhold(entry.position, entry.wanted)
        self.entries.clear()

    def void(self) -> None:
        """Forget all messages so far: they are not handed out, and not acknowledged any more."""
        self._events.voided(self)
        self._drop_entries()
        self.held.clear()
        self.outstanding.clear()
        self.unacked.clear()
        self.chunks.places.clear()
        self._link.forget()

    def reached_end(self) -> None:
        self._events.reached_end(self)

    def active_changed(self, active: bool) -> None:
        """Drop what is not handed out if another consumer of the subscription gets it now."""
        self.active = active
        if not active:
            dropped = sum(entry.wanted.bit_count() for entry in self.entries)
            self._drop_entries()
            self.give_back(dropped)
        self._events.active_changed(self)

    # The connection.

    @property
    def connected(self) -> bool:
        return self._link.connection is not None

    @property
    def broker_is_ours(self) -> bool:
        return self._link.connection is not None and self._link.connection.is_ours

    def closed_by_broker(self) -> None:
        """The broker ended the subscription, after a seek or for another reader: it may deliver all again."""
        self.void()
        self._lose(ReconnectEvent.LOST)

    def start_over(self) -> None:
        """Subscribe again, because the subscription was moved."""
        if self.released:
            return
        self.void()
        self._leave(ReconnectEvent.LOST)

    async def ask(self, command: Callable[[int, int], ProtoMessage]) -> None:
        """Send a command about this consumer, made of its id and a request id; raises the refusal."""
        if self._link.connection is None:
            raise NotConnectedError(f"{self.topic} is not connected; try again")
        made = command(self._link.consumer_id, self._pool.next_id())
        await self._link.connection.request(made, pb.CommandSuccess, self._pool.operation_timeout_s)

    def connection_lost(self) -> None:
        self._owner.look_up_again()
        self._lose(ReconnectEvent.LOST)

    def owned_by(self, url: str | None) -> None:
        """Follow the segment to the broker that a layout names."""
        if url not in (None, self._owner.named):
            self._reconnector.handle(ReconnectEvent.RETRIED)
        if self._owner.layout_named(url, self._link.connection):
            self._leave(ReconnectEvent.LOST)

    def renew(self, generation: int | None) -> None:
        """Note a newer assignment of the same segment; a pause between attempts ends."""
        if generation != self.attachment.generation:
            self.attachment = replace(self.attachment, generation=generation)
            self._reconnector.handle(ReconnectEvent.RETRIED)

    def _leave(self, event: ReconnectEvent) -> None:
        """End the subscription at the broker; unanswered acknowledgements are sent on the next connection."""
        if self._link.connection is not None:
            end_consumer(self._link.connection, self._link.consumer_id, self._pool.next_id())
            self._lose(event)

    def _lose(self, event: ReconnectEvent) -> None:
        self._detach()
        self._drop_entries()
        self._reconnector.handle(event)

    def _detach(self) -> None:
        if self.noted:
            self._settle()
        self._link.detach()

    async def _attempt(self) -> None:
        while not await self._owner.attempt(self._attach):
            pass

    def _failed(self, error: Exception) -> bool:
        self.problem = error
        if isinstance(error, (ConsumerBusyError, ConsumerAssignError)):
            self.first_answer.wait_for_others()
        if isinstance(error, AnabranchError) and self._events.is_final(self, error):
            self.give_up(error)
            return True
        self._owner.look_up_again()
        return False

    async def _attach(self) -> None:
        pool = self._pool
        self._reconnector.handle(ReconnectEvent.BEGUN)
        connection = await self._owner.connection()
        if self._life.ended:
            return
        consumer_id = pool.next_id()
        if self.attachment.start is not None:
            self.floor = self.attachment.start()
        self.permits.reset()
        command = self.attachment.command(self._address, consumer_id, pool.next_id(), self.floor)
        if self.owner.opened_in is not None:
            command.opened_in = self.owner.opened_in
        describe_schema(command, self.schema)
        reply = await begin_consumer(pool, connection, command, self)
        if self._life.ended:
            end_consumer(connection, consumer_id, pool.next_id())
            return
        if reply.HasField("incarnation"):
            self.owner.opened_in = reply.incarnation
        if self._life.phase is ReconnectPhase.OUTDATED:
            # The connection was lost, or the broker ended the subscription, right after its answer.
            return
        self._link.attach(connection, consumer_id)
        self.flush_acks()
        if self.intake is Intake.OPEN:
            self._ask_for(self.permits.size)
        if self.first_answer.accepted:
            self._events.attached_again(self)
        else:
            self.first_answer.accept()

    async def last_message(self) -> MessageId:
        """Return the last message in the segment, or the place before the first; raises NotConnectedError."""
        await self.first_answer.success()
        connection, pool = self._link.connection, self._pool
        if connection is None:
            raise NotConnectedError(f"{self.topic} is not connected; try again")
        reply = await connection.request(
            pb.CommandGetLastMessageId(consumer_id=self._link.consumer_id, request_id=pool.next_id()),
            pb.CommandGetLastMessageIdResponse,
            pool.operation_timeout_s,
        )
        last = reply.last_message_id
        next_index = reply.next_index if reply.HasField("next_index") else -1
        if last.ledgerId >= 2**63 or last.entryId >= 2**63:
            if not connection.is_ours and (found := await last_message(pool, connection, self.topic)):
                return MessageId(self.segment_id, *found)
            return before_first(self.segment_id, next_index)
        return MessageId(
            self.segment_id, last.ledgerId, last.entryId, last.batch_index, next_index=next_index
        )

    # The end.

    def give_up(self, error: AnabranchError) -> None:
        """End because of an error, and report it."""
        self._end(error)
        self._events.gave_up(self, error)

    def _end(self, error: AnabranchError) -> None:
        self._reconnector.handle(ReconnectEvent.ENDED)
        self.chunks.close()
        self.first_answer.end(error)
        self._detach()

    async def close(self) -> None:
        """End the subscription; the caller should wait for `acks_confirmed` before."""
        await farewell([self.hang_up()])

    def hang_up(self) -> asyncio.Future[Any] | None:
        """As `close`, and return the broker's answer to come instead of waiting for it."""
        if self._life.ended:
            return None
        self.entries.clear()
        connection = self._link.connection
        self._end(AlreadyClosedError("the consumer was closed"))
        if connection is None:
            return None
        connection.consumers.pop(self._link.consumer_id, None)
        return connection.post(
            pb.CommandCloseConsumer(consumer_id=self._link.consumer_id, request_id=self._pool.next_id())
        )


def _bits_of(indexes: list[int]) -> int:
    """As `bits_at`, at once for messages that were acknowledged in their order."""
    first, last = indexes[0], indexes[-1]
    if last - first == len(indexes) - 1 and indexes == list(range(first, last + 1)):
        return (2 << last) - (1 << first)
    return bits_at(indexes)
