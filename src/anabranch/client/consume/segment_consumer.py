"""The consumer of one segment: it subscribes, asks for messages and buffers the delivered entries.

After a lost connection it subscribes again, and leaves out messages that the application already holds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.client.consume.ack_sender import AckSender
from anabranch.client.consume.attachment import Attachment, SegmentAddress
from anabranch.client.consume.first_answer import FirstAnswer
from anabranch.client.decide.acknowledgements import Acknowledgements, LedgerEntry
from anabranch.client.decide.ordering import before_first, bits_after
from anabranch.client.decide.permits import Intake, Permits
from anabranch.client.decide.reconnection import ReconnectEvent, ReconnectPhase
from anabranch.client.message import Received
from anabranch.client.net.closing import farewell
from anabranch.client.net.connection import end_consumer
from anabranch.client.net.reconnector import Reconnector, SegmentOwner
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConsumerAssignError,
    ConsumerBusyError,
    NotConnectedError,
    RemoteProtocolError,
)
from anabranch.model.ids import MessageId
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.client.consume.inbox import Inbox

_RELEASED = Intake.RELEASED


class SegmentConsumer(AckSender):
    """Reads one segment for `home`, the consumer of the topic."""

    def __init__(
        self, home: Inbox[Any], address: SegmentAddress, attachment: Attachment, permits: Permits
    ) -> None:
        self._owner = SegmentOwner(home.pool, address.topic, address.owner_url)
        self._reconnector = Reconnector(
            address.topic, home.pool.rng, self._attempt, self._failed, self._owner.__str__
        )
        super().__init__(home.pool, address.topic, self._reconnector)
        self.home, self.schema, self.vector = home, home.schema, home.vector
        self.segment_id = address.segment_id
        self.attachment, self.permits = attachment, permits
        self.intake = Intake.PAUSED if attachment.paused else Intake.OPEN
        self.entries: deque[Received] = deque()
        """Entries that were delivered and not handed out."""
        self.stale: list[Callable[[Received], bool]] = []
        """Tell the entries that the broker keeps, although it may have sent them before."""
        self.held: dict[LedgerEntry, int] = {}
        """Bits of messages in the buffer or with the application, neither acknowledged nor given back."""
        self.outstanding: deque[Received] = deque()
        """For cumulative acknowledgement: entries handed out, in order, that are not fully acknowledged."""
        self.unacked: dict[LedgerEntry, int] = {}
        """For single acknowledgement: bits of an entry's messages that are not acknowledged."""
        self.floor: MessageId | None = None
        """Messages at or before this position are not handed out."""
        self.first_answer = FirstAnswer()
        self.problem: Exception | None = None
        """Why the last attempt to subscribe failed."""
        self._address = address
        home.tasks.start(self._reconnector.run(), f"consume {address.topic}")

    # Deliveries.

    @property
    def released(self) -> bool:
        return self.intake is _RELEASED

    def delivered(self, delivery: Delivery) -> None:
        """Buffer an entry without the messages that the application holds or has acknowledged."""
        if len(self.entries) > self.permits.entries_max:
            raise RemoteProtocolError(f"the broker sent more of {self.topic} than it was asked for")
        entry = Received(self, delivery)
        cost = entry.wanted.bit_count() + entry.surplus
        self.permits.use(cost)
        if self.intake is _RELEASED:
            return
        held = self.held.get(entry.position)
        if held:
            entry.wanted &= ~held
        # The broker may have sent the entry before these acknowledgements reached it.
        entry.wanted &= self.acks.pending(entry.position)
        if self.floor is not None:
            entry.wanted &= bits_after(self.floor, *entry.position)
        if not entry.wanted or any(is_stale(entry) for is_stale in self.stale):
            self.give_back(cost)
            return
        self.give_back(cost - entry.wanted.bit_count())
        if self.attachment.durable:
            self.held[entry.position] = self.held.get(entry.position, 0) | entry.wanted
        self.entries.append(entry)
        if len(self.entries) == 1:
            self.home.ready(self)

    def take(self) -> tuple[Received, bool]:
        """Return the next entry to hand out, and whether a command asked the broker for more messages."""
        entry = self.entries.popleft()
        self.permits.fit(len(entry.data) / entry.count, emptied=not self.entries)
        return entry, self.give_back(entry.wanted.bit_count())

    def give_back(self, count: int) -> bool:
        """Note that messages left the buffer; True when a command asked the broker for more."""
        due = self.permits.give_back(count)
        if not due or self._connection is None or self.intake is _RELEASED:
            return False
        self._ask_for(due)
        return True

    def resize(self, size: int) -> None:
        """Buffer up to `size` messages from now on."""
        self.permits.resize(size)
        if self.intake is Intake.OPEN:
            self.give_back(0)

    def _ask_for(self, count: int) -> None:
        if self._connection is not None:
            self.permits.grant(count)
            self._connection.send(pb.CommandFlow(consumer_id=self._consumer_id, messagePermits=count))

    def resume(self) -> None:
        """Ask a paused segment for messages."""
        if self.intake is Intake.PAUSED:
            self.intake = Intake.OPEN
            self._ask_for(self.permits.size)

    def reached_end(self) -> None:
        self.home.reached_end(self)

    def release(self) -> None:
        """Hand out nothing more; messages handed out before can still be acknowledged."""
        self.intake = _RELEASED
        self._drop_entries()

    def _drop_entries(self) -> None:
        self.home.dropped(self)
        for entry in self.entries:
            self.unhold(entry.position, entry.wanted)
        self.entries.clear()

    def unhold(self, place: LedgerEntry, bits: int) -> None:
        """Let the broker deliver these messages again."""
        held = self.held.get(place, 0) & ~bits
        if held:
            self.held[place] = held
        else:
            self.held.pop(place, None)

    # The connection.

    def closed_by_broker(self) -> None:
        """Called after a seek, or for another reader: the broker may deliver the held messages again."""
        self.home.voided(self)
        self.held.clear()
        self.outstanding.clear()
        self.unacked.clear()
        self.acks = Acknowledgements()
        self._lose(ReconnectEvent.LOST)

    def connection_lost(self) -> None:
        self._owner.look_up_again()
        self._lose(ReconnectEvent.LOST)

    def owned_by(self, url: str | None) -> None:
        """Follow the segment to the broker that a layout names."""
        if url not in (None, self._owner.named):
            self._reconnector.handle(ReconnectEvent.RETRIED)
        if self._owner.layout_named(url, self._connection):
            self._leave(ReconnectEvent.LOST)

    def renew(self, generation: int | None) -> None:
        """Note a newer assignment of the same segment; a pause between attempts ends."""
        if generation != self.attachment.generation:
            self.attachment = replace(self.attachment, generation=generation)
            self._reconnector.handle(ReconnectEvent.RETRIED)

    def _leave(self, event: ReconnectEvent) -> None:
        """End the subscription at the broker; unanswered acknowledgements are sent on the next connection."""
        if self._connection is not None:
            end_consumer(self._connection, self._consumer_id, self._pool.next_id())
            self._lose(event)

    def _ack_refused(self) -> None:
        self._leave(ReconnectEvent.REFUSED)

    def _lose(self, event: ReconnectEvent) -> None:
        self._detach()
        self._drop_entries()
        self._reconnector.handle(event)

    async def _attempt(self) -> None:
        while not await self._owner.attempt(self._attach):
            pass

    def _failed(self, error: Exception) -> bool:
        self.problem = error
        if isinstance(error, (ConsumerBusyError, ConsumerAssignError)):
            self.first_answer.wait_for_others()
        if isinstance(error, AnabranchError) and self.home.is_final(self, error):
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
        if self.home.opened_in is not None:
            command.opened_in = self.home.opened_in
        connection.consumers[consumer_id] = self
        try:
            reply = await connection.request(command, pb.CommandSuccess, pool.operation_timeout_s)
        except BaseException:
            end_consumer(connection, consumer_id, pool.next_id())
            raise
        if self._life.ended:
            end_consumer(connection, consumer_id, pool.next_id())
            return
        if reply.HasField("incarnation"):
            self.home.opened_in = reply.incarnation
        if self._life.phase is ReconnectPhase.OUTDATED:
            # The connection was lost, or the broker ended the subscription, right after its answer.
            return
        self._connection = connection
        self._consumer_id = consumer_id
        self.flush_acks()
        if self.intake is Intake.OPEN:
            self._ask_for(self.permits.size)
        if self.first_answer.accepted:
            self.home.attached_again(self)
        else:
            self.first_answer.accept()

    async def last_message(self) -> MessageId:
        """The last message in the segment now, or the place before the first; raises NotConnectedError."""
        await self.first_answer.success()
        if self._connection is None:
            raise NotConnectedError(f"{self.topic} is not connected; try again")
        reply = await self._connection.request(
            pb.CommandGetLastMessageId(consumer_id=self._consumer_id, request_id=self._pool.next_id()),
            pb.CommandGetLastMessageIdResponse,
            self._pool.operation_timeout_s,
        )
        last = reply.last_message_id
        next_index = reply.next_index if reply.HasField("next_index") else -1
        if last.ledgerId >= 2**63 or last.entryId >= 2**63:
            return before_first(self.segment_id, next_index)
        return MessageId(
            self.segment_id, last.ledgerId, last.entryId, last.batch_index, next_index=next_index
        )

    # The end.

    def give_up(self, error: AnabranchError) -> None:
        """End because of an error, and report it to the consumer of the topic."""
        self._end(error)
        self.home.gave_up(self, error)

    def _end(self, error: AnabranchError) -> None:
        self._reconnector.handle(ReconnectEvent.ENDED)
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
        connection = self._connection
        self._end(AlreadyClosedError("the consumer was closed"))
        if connection is None:
            return None
        connection.consumers.pop(self._consumer_id, None)
        return connection.post(
            pb.CommandCloseConsumer(consumer_id=self._consumer_id, request_id=self._pool.next_id())
        )
