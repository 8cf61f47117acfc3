"""The consumer of one segment: it subscribes and follows the segment to its owner.

After a lost connection it subscribes again, and leaves out messages that the application already holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message as ProtoMessage

from anabranch.client.consume.segments.attachment import Attachment, SegmentAddress
from anabranch.client.consume.segments.first_answer import FirstAnswer
from anabranch.client.consume.segments.segment_buffer import SegmentBuffer
from anabranch.client.decide.connecting.reconnection import ReconnectEvent, ReconnectPhase
from anabranch.client.decide.consuming.acknowledgements import Acknowledgements
from anabranch.client.decide.consuming.ordering import before_first
from anabranch.client.decide.consuming.permits import Intake, Permits
from anabranch.client.net.closing import farewell
from anabranch.client.net.place_search import last_message
from anabranch.client.net.reconnector import Reconnector, SegmentOwner
from anabranch.client.net.subscribing import begin_consumer, end_consumer
from anabranch.client.net.topics.schemas import describe_schema
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConsumerAssignError,
    ConsumerBusyError,
    NotConnectedError,
)
from anabranch.model.ids import MessageId
from anabranch.protocol.pb import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.client.consume.inbox.inbox import Inbox

_RELEASED = Intake.RELEASED


class SegmentConsumer(SegmentBuffer):
    """Reads one segment for `home`, the consumer of the topic."""

    home: Inbox[Any]

    def __init__(
        self, home: Inbox[Any], address: SegmentAddress, attachment: Attachment, permits: Permits
    ) -> None:
        self._owner = SegmentOwner(home._pool, address.topic, address.owner_url)
        self._reconnector = Reconnector(
            address.topic, home._pool.rng, self._attempt, self._failed, self._owner.__str__
        )
        super().__init__(home, address, attachment, permits, self._reconnector)
        self.first_answer = FirstAnswer()
        self.problem: Exception | None = None
        """Why the last attempt to subscribe failed."""
        self._address = address
        home._tasks.start(self._reconnector.run(), f"consume {address.topic}")

    # The connection.

    def closed_by_broker(self) -> None:
        """Called after a seek, or for another reader: the broker may deliver the held messages again."""
        self.void()
        self._lose(ReconnectEvent.LOST)

    def void(self) -> None:
        """Forget all messages so far: they are not handed out, and not acknowledged any more."""
        self.home._voided(self)
        self._drop_entries()
        self.held.clear()
        self.outstanding.clear()
        self.unacked.clear()
        self.chunked.clear()
        self._acks = Acknowledgements()

    def start_over(self) -> None:
        """Subscribe again, because the subscription was moved."""
        if self.released:
            return
        self.void()
        self._leave(ReconnectEvent.LOST)

    async def ask(self, command: Callable[[int, int], ProtoMessage]) -> None:
        """Send a command about this consumer, made of its id and a request id; raises the refusal."""
        if self._connection is None:
            raise NotConnectedError(f"{self.topic} is not connected; try again")
        made = command(self._consumer_id, self._pool.next_id())
        await self._connection.request(made, pb.CommandSuccess, self._pool.operation_timeout_s)

    @property
    def broker_is_ours(self) -> bool:
        return self._connection is not None and self._connection.is_ours

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
        if isinstance(error, AnabranchError) and self.home._is_final(self, error):
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
        if self.home._opened_in is not None:
            command.opened_in = self.home._opened_in
        describe_schema(command, self.schema)
        reply = await begin_consumer(pool, connection, command, self)
        if self._life.ended:
            end_consumer(connection, consumer_id, pool.next_id())
            return
        if reply.HasField("incarnation"):
            self.home._opened_in = reply.incarnation
        if self._life.phase is ReconnectPhase.OUTDATED:
            # The connection was lost, or the broker ended the subscription, right after its answer.
            return
        self._connection = connection
        self._consumer_id = consumer_id
        self.flush_acks()
        if self.intake is Intake.OPEN:
            self._ask_for(self.permits.size)
        if self.first_answer.accepted:
            self.home._attached_again(self)
        else:
            self.first_answer.accept()

    async def last_message(self) -> MessageId:
        """The last message in the segment now, or the place before the first; raises NotConnectedError."""
        await self.first_answer.success()
        if self._connection is None:
            raise NotConnectedError(f"{self.topic} is not connected; try again")
        connection, pool = self._connection, self._pool
        reply = await connection.request(
            pb.CommandGetLastMessageId(consumer_id=self._consumer_id, request_id=pool.next_id()),
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
        """End because of an error, and report it to the consumer of the topic."""
        self._end(error)
        self.home._gave_up(self, error)

    def _end(self, error: AnabranchError) -> None:
        self._reconnector.handle(ReconnectEvent.ENDED)
        if self._expiry is not None:
            self._expiry.cancel()
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
