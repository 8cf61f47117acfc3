"""The producer of one segment: registers with the owner, sends, and settles when the segment is sealed.

Entries leave in order and are answered in order. After a lost connection the broker says which sequence id it
has stored last: entries up to that id are done, the others are sent again, unchanged and in the same order.
When the segment is sealed, the producer asks the same question once more and keeps the other entries until
they are taken back. The states of this life and their transitions are in `decide/producer_life.py`; this
module dials, waits and carries out the effects.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from anabranch.client.decide.connecting.refused_roles import is_refused_role
from anabranch.client.decide.producing.producer_life import (
    ProducerEffect,
    ProducerEvent,
    ProducerLife,
    ProducerState,
    registration_failed,
)
from anabranch.client.net.connection_pool import pause_s
from anabranch.client.net.stored_tail import BEFORE_ALL, StoredTail, stored_since
from anabranch.client.net.trouble import SegmentTrouble
from anabranch.client.options import log
from anabranch.client.produce.parts import METADATA_BYTES_MAX, ProducerParts
from anabranch.client.produce.registering import ProducerRegistration, ask_what_is_stored, stored_here
from anabranch.client.produce.sending import BatchReports, SegmentSender
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    AuthorizationError,
    TopicTerminatedError,
)
from anabranch.model.layout import Segment
from anabranch.protocol.commands import NO_ID, SendReceipt
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import exception_for

LAST_RECEIPTS_S = 1.0
"""How long a sealed segment may still answer the entries it was sent before the producer asks outright."""

LAYOUT_DUE_S = 1.0
"""How long the layout may take to confirm that a segment is sealed."""


class SegmentReports(BatchReports, Protocol):
    """Reports of a segment's producer, for the routes of its topic."""

    def settled(self) -> None:
        """A sealed segment knows the outcome of every entry that was sent; the others can be taken back."""

    def failed(self, producer: SegmentProducer) -> None:
        """The producer has ended because its registration was refused for good; its messages have failed."""


class SegmentProducer:
    """Keeps one segment's registration alive and gives the sender's entries their outcomes."""

    def __init__(
        self, parts: ProducerParts, reports: SegmentReports, segment: Segment, topic: str, url: str | None
    ) -> None:
        self.segment, self.topic = segment, topic
        self.registration = ProducerRegistration(parts, segment, topic, url)
        self.sender = SegmentSender(parts, reports, segment, self.registration)
        self.credit = self.sender.credit
        self.attached: asyncio.Future[int | None] = parts.loop.create_future()
        """The last sequence id stored before the first registration, or the error that ended the producer;
        None when the layout removed the segment first."""
        self.in_doubt = False
        """Whether the segment could not say which entries it has stored; its successors may know."""
        self.life = ProducerLife()
        self._parts = parts
        self._reports = reports
        self._confirmed = BEFORE_ALL
        """The place of the last confirmed entry; entries in doubt can only lie behind it."""
        self._tail: StoredTail | None = None
        self._sealed = asyncio.Event()
        """Set when the layout says that the segment is sealed."""
        self._trouble = SegmentTrouble(topic, self.registration.owner.__str__)
        self._work: asyncio.Task[None] | None = None
        self._carry_out(ProducerEffect.ATTACH)

    # Reports of the connection and the layout.

    # Called once for each entry. A broker answers entries in the order in which they were sent, so a receipt
    # belongs to the oldest entry or is late: it answers an entry that has expired here, whose credit comes
    # back only now. A receipt for a later entry means that one is missing. Registering again makes the broker
    # say what it has stored; searching for the entry instead would hide a lost message.
    def receipt(self, receipt: SendReceipt) -> None:
        """Complete the oldest sent entry: the broker has stored it now or had stored it before."""
        sender = self.sender
        sent = sender.sent
        if not sent or receipt.sequence_id < sent[0].sequence:
            self.credit.answered_late()
            sender.credited()
            return
        batch = sent[0]
        if receipt.sequence_id > batch.sequence:
            log.warning(
                "%s: receipt for %d while %d was due", self.topic, receipt.sequence_id, batch.sequence
            )
            self._apply(ProducerEvent.DETACHED)
            return
        if batch.unanswered_chunks > 1:
            batch.unanswered_chunks -= 1
            return
        sent.popleft()
        self.credit.give_back(batch.size, batch.count)
        if self.life.refusals:
            self.life.refusals = 0
            self._trouble.accepted()
        stored = receipt.ledger != NO_ID
        if stored:
            self._confirmed = receipt.ledger, receipt.entry
        sender.store(batch, receipt.ledger if stored else -1, receipt.entry if stored else -1)
        sender.credited()
        if not sent:
            if self.life.state is ProducerState.LAST_RECEIPTS:
                self._apply(ProducerEvent.RECEIPTS_ENDED)
            elif sender.batcher.opened and not sender.unsent:
                sender.close_batches()

    def credited(self) -> None:
        """The broker has raised or lowered the limits of `credit`."""
        self.sender.credited()

    def send_error(self, error: pb.CommandSendError) -> None:
        """Fail the entry that the broker does not allow; register again after any other refusal."""
        cause = exception_for(error.error, error.message)
        sent = self.sender.sent
        if isinstance(cause, TopicTerminatedError):
            self._apply(ProducerEvent.SEALED_BY_BROKER)
        elif error.error == pb.NotAllowedError and sent and sent[0].sequence == error.sequence_id:
            batch = sent.popleft()
            self.credit.give_back(batch.size, batch.count)
            self.sender.fail(batch, cause)
            self.sender.credited()
        else:
            log.debug("%s: %s", self.topic, cause)
            self._trouble.refused(cause)
            self._apply(ProducerEvent.SEND_REFUSED)

    @property
    def is_attached(self) -> bool:
        """Whether entries can be sent now."""
        return self.registration.is_attached

    def closed_by_broker(self, *, sealed: bool = False) -> None:
        """The broker ended the registration: the segment was sealed, or has another owner."""
        # An attempt to register that is still under way notices by itself.
        if self.is_attached:
            self._apply(ProducerEvent.SEALED_AND_ANSWERED if sealed else ProducerEvent.DETACHED)

    def connection_lost(self) -> None:
        self.registration.owner.look_up_again()
        self._apply(ProducerEvent.DETACHED)

    def owned_by(self, url: str | None) -> None:
        """Follow the segment to the broker that a layout names."""
        if self.registration.owner.layout_named(url, self.registration.connection):
            self._apply(ProducerEvent.DETACHED)

    def depart(self) -> None:
        """The layout does not list the segment as active any more."""
        self._sealed.set()
        self._apply(ProducerEvent.SEALED_BY_LAYOUT)

    # Carrying out the effects of the producer's life.

    def _apply(self, event: ProducerEvent) -> None:
        for effect in self.life.handle(event):
            self._carry_out(effect)

    def _carry_out(self, effect: ProducerEffect) -> None:
        match effect:
            case ProducerEffect.ATTACH | ProducerEffect.ASK_STORED | ProducerEffect.AWAIT_LAYOUT:
                self._stop()
                self._work = self._parts.tasks.start(self._perform(effect), f"{effect.name} {self.topic}")
            case ProducerEffect.STOP:
                self._stop()
            case ProducerEffect.SEND:
                self.sender.close_batches()
            case ProducerEffect.RELEASE:
                self._release()
            case ProducerEffect.AWAIT_RECEIPTS:
                self._await_receipts()
            case ProducerEffect.REPORT_LEFT:
                if not self.attached.done():
                    self.attached.set_result(None)
            case ProducerEffect.REPORT_SETTLED:
                self._reports.settled()
            case ProducerEffect.REPORT_FAILED:
                self._reports.failed(self)

    def _stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None

    async def _perform(self, effect: ProducerEffect) -> None:
        if self.life.failures:
            delay_s = pause_s(self.registration.problem, self.life.failures, self._parts.pool.rng)
            await self.registration.owner.pause(delay_s)
        if effect is ProducerEffect.ATTACH:
            event = await self._attach()
        elif effect is ProducerEffect.ASK_STORED:
            event = await self._settle()
        else:
            await self.registration.owner.pause(LAYOUT_DUE_S)
            event = ProducerEvent.LAYOUT_OVERDUE
        self._work = None
        self._apply(event)

    async def _attach(self) -> ProducerEvent:
        owner = self.registration.owner
        self._trouble.begin()
        try:
            while not await owner.attempt(self._register):
                pass  # The layout named another broker; try there.
        except (AnabranchError, TimeoutError) as error:
            event = registration_failed(
                error, may_be_held=self.registration.may_be_held, role_ends=self._parts.role.ends(error)
            )
            self.registration.problem = error
            if event is ProducerEvent.REFUSED:
                self.fail_all(error)
            elif event is ProducerEvent.UNREACHABLE:
                log.debug("%s: %s", self.topic, error)
                self._trouble.refused(error)
                owner.look_up_again()
            return event
        if not self.is_attached:
            return ProducerEvent.DETACHED
        if not self.life.refusals:
            self._trouble.accepted()
        return ProducerEvent.ACCEPTED

    async def _register(self) -> None:
        reply = await self.registration.make(self)
        connection = self.registration.connection
        if reply is None or connection is None:
            return
        self._parts.role.accepted()
        self._parts.message_bytes_max = connection.machine.max_message_bytes - METADATA_BYTES_MAX
        self.sender.store_up_to(stored_here(reply))
        if not self.attached.done():
            self.attached.set_result(reply.last_sequence_id)

    def _release(self) -> None:
        connection = self.sender.leave_connection()
        if connection is not None:
            connection.send(self.registration.close_command())

    def _await_receipts(self) -> None:
        # A late receipt also says where the entry is stored, which the last sequence id does not.
        if self.sender.sent:
            self._parts.loop.call_later(LAST_RECEIPTS_S, self._apply, ProducerEvent.RECEIPTS_ENDED)
        else:
            self._apply(ProducerEvent.RECEIPTS_ENDED)

    async def _settle(self) -> ProducerEvent:
        """Find out which of the entries that were sent are stored; the others are free to go elsewhere."""
        owner = self.registration.owner
        try:
            if any(batch.tried for batch in self.sender.unsent):
                while not await owner.attempt(self._ask_what_is_stored):
                    pass  # The layout named another broker; ask there.
        except (AnabranchError, TimeoutError) as error:
            self.registration.problem = error
            refused_for_now = is_refused_role(error) and not self._parts.role.ends(error)
            if not isinstance(error, AnabranchError) or error.retryable or refused_for_now:
                owner.look_up_again()
                return ProducerEvent.UNREACHABLE
            if isinstance(error, AuthorizationError):
                # Entries in doubt that were sent to another segment would be stored twice without a sign.
                self.sender.fail_tried(
                    AuthorizationError(
                        f"{self.topic} is sealed, and only its reader learns whether this message is stored; "
                        f"the role of a producer also needs the right to consume from the topic: {error}"
                    )
                )
                return ProducerEvent.STORED_KNOWN
            # The segment may be gone. A message that is stored twice is better than a lost one.
            log.debug("%s cannot say which entries it has stored: %s", self.topic, error)
            self.in_doubt = True
        return ProducerEvent.STORED_KNOWN

    async def _ask_what_is_stored(self) -> None:
        connection = await self.registration.owner.connection()
        reply = await ask_what_is_stored(self._parts, connection, self.topic)
        if reply is not None:
            self.sender.store_up_to(stored_here(reply))
            return
        # Until the layout confirms the seal, a broker of Apache Pulsar may still store entries that it
        # has accepted, although it refuses later ones already.
        await self._sealed.wait()
        connection = await self.registration.owner.connection()
        if self._tail is None:
            self._tail = StoredTail(self._parts.pool, self.topic, self._parts.name, self._confirmed)
        self.sender.store_found(await stored_since(self._tail, connection))

    def fail_all(self, error: Exception) -> None:
        """Fail all messages, and the first registration if it is still awaited."""
        if not self.attached.done():
            self.attached.set_exception(error)
            self.attached.exception()
        self.sender.fail_all(error)

    def hang_up(self) -> asyncio.Future[Any] | None:
        """Give the registration back and fail messages without an outcome; return the answer to come."""
        self._apply(ProducerEvent.CLOSED)
        connection = self.sender.leave_connection()
        self.fail_all(AlreadyClosedError("the producer was closed before the message was stored"))
        return None if connection is None else connection.post(self.registration.close_command())
