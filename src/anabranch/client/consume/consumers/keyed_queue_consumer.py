"""The queue consumer that keeps the order of keys: a member of a group that acknowledges single messages.

The leader assigns segments and buckets to it as to a stream consumer, so that all messages of a key come to
one consumer at a time, also through splits and merges. A message that the application refuses stays here and
comes again from memory; later messages of its key wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from anabranch.client.consume.alarm import Alarm
from anabranch.client.consume.consumers.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.segments.attachment import Attachment, SegmentAddress
from anabranch.client.consume.segments.classic_share import ClassicShare, open_share
from anabranch.client.consume.segments.group_membership import GroupMembership
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.consuming.failures import Fate, after_failure
from anabranch.client.decide.consuming.key_pauses import KeyPauses
from anabranch.client.decide.consuming.permits import Permits
from anabranch.client.message import Message, again, ordering_key
from anabranch.client.options import log
from anabranch.client.received import Received
from anabranch.errors import AnabranchError, InvalidConfigurationError
from anabranch.model.ids import MessageId

T = TypeVar("T")

WAITING_TIMES = 10
"""Messages that may wait for paused keys before the consumer takes no more, as a multiple of its queue."""


class KeyedQueueConsumer(AsyncQueueConsumer[T]):
    """Made by `AsyncClient.subscribe_queue` with `order="key"`."""

    _pauses: KeyPauses[Message[T]]
    _resume_alarm: Alarm

    def _choose_segments(self, attachment: Attachment) -> GroupMembership:
        self._pauses = KeyPauses(ordering_key)
        self._resume_alarm = Alarm(self._loop, self._resume)
        return GroupMembership(self, self._options, attachment, None)

    async def _open(self) -> None:
        async with self._close_on_error() as deadline:
            await open_share(self._segments, deadline, self._use_classic)

    def _use_classic(self) -> ClassicShare:
        assert isinstance(self._segments, GroupMembership)
        self._segments = share = ClassicShare(self, self._segments, self._options, self._queue_size)
        return share

    def _use_share(self, share: GroupMembership) -> None:
        self._segments = share

    def _active_changed(self, source: SegmentConsumer) -> None:
        super()._active_changed(source)
        self._segments.active_changed(source)

    # Handing out.

    def _load(self) -> bool:
        if self._pauses.held >= WAITING_TIMES * self._queue_size:
            return False
        return super()._load()

    def _start_run(self, entry: Received) -> None:
        super()._start_run(entry)
        if self._pauses:
            self._sift()

    def _sift(self) -> None:
        """Keep messages of paused keys from the application."""
        self._run = self._pauses.sift(reversed(self._run))[::-1]

    def _accept(self, entry: Received) -> bool:
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        source.unacked[entry.position] = source.unacked.get(entry.position, 0) | entry.wanted
        return True

    # Refused messages.

    def _refuse(
        self, message: Message[T] | MessageId, source: SegmentConsumer, delay_s: float, reason: str
    ) -> None:
        if isinstance(message, MessageId):
            raise InvalidConfigurationError('a consumer with order="key" needs the message, not its id')
        if not self._holds(message):
            return
        fate = after_failure(message.redelivery_count, self._dead_letter)
        if fate is not Fate.SKIP and source.released:
            # The next reader of the segment gets the message, before all later ones of its key.
            self._unhold([message])
            self._segments.progressed()
            return
        if fate is Fate.PARK:
            log.error("%s: the key of %r is parked: %s", self.topic, message, reason)
            if self._park(message, reason):
                return
        due_at = self._loop.time() + delay_s if fate is Fate.RETRY else math.inf
        self._pauses.refuse(again(message), message._number, due_at)
        self._sift()
        if fate is Fate.SKIP:
            self._tasks.start(self._skip(message, delay_s, reason), f"dead letter of {self.topic}")
        self._schedule_resume()

    def _take_back(self, unwanted: Callable[[Message[T]], bool]) -> list[Message[T]]:
        return super()._take_back(unwanted) + self._pauses.withdraw(unwanted)

    async def release_parked(self, key: str | None = None) -> int:
        hastened = self._pauses.hasten(self._loop.time(), lambda message: key in (None, message.key))
        self._schedule_resume()
        return hastened + await super().release_parked(key)

    def _holds(self, message: Message[T]) -> bool:
        """Whether a message is neither acknowledged nor delivered to another consumer."""
        entry: Received = message._entry
        source: SegmentConsumer = entry.source  # type: ignore[assignment]
        return bool(source.held.get(entry.position, 0) >> message._index & 1)

    async def _skip(self, message: Message[T], delay_s: float, reason: str) -> None:
        try:
            await self._bury(message, reason)
            self._pauses.settle(message, message._number)
        except AnabranchError as error:
            log.warning("%s: %r cannot become a dead letter: %s", self.topic, message, error)
            self._pauses.settle(message, message._number)
            self._pauses.refuse(again(message), message._number, self._loop.time() + delay_s)
        self._schedule_resume()

    def _schedule_resume(self) -> None:
        if not self._closed:
            self._resume_alarm.set(max(self._pauses.next_due, self._loop.time()))

    def _resume(self) -> None:
        due = self._pauses.take_due(self._loop.time())
        self._hand_out_again([message for message in due if self._holds(message)])
        # The consumer may have taken no message because too many waited.
        self._waiting.wake()
        self._schedule_resume()

    def _end_waiting(self) -> None:
        super()._end_waiting()
        self._resume_alarm.cancel()

    # For the membership, and for the consumers of segments.

    def _consume(self, address: SegmentAddress, attachment: Attachment) -> SegmentConsumer:
        return SegmentConsumer(self, address, attachment, Permits(self._queue_size))

    def _has_messages_of(self, source: SegmentConsumer) -> bool:
        return bool(source.held)

    def _left(self, source: SegmentConsumer, why: str | None) -> None:
        if why is not None:
            log.debug("%s: acknowledgements may not be confirmed: %s", source.topic, why)

    def _dropped(self, source: SegmentConsumer) -> None:
        super()._dropped(source)
        if source.released:
            self._forget_paused(source)

    def _voided(self, source: SegmentConsumer) -> None:
        super()._voided(source)
        self._forget_paused(source)
        self._loop.call_soon(self._segments.progressed)

    def _forget_paused(self, source: SegmentConsumer) -> None:
        """Let the broker deliver waiting messages of a segment again, here or elsewhere."""
        self._unhold(self._pauses.withdraw(lambda message: message._entry.source is source))
        self._schedule_resume()

    async def _give_back(self, message: Message[T], delay_s: float) -> bool:
        return False

    def _gave_up(self, source: SegmentConsumer, error: AnabranchError) -> None:
        super()._gave_up(source, error)
        if source.released and self._failure is None and isinstance(self._segments, GroupMembership):
            # The leader may have assigned the segment again, with other buckets.
            self._segments.reconcile()

    def _refused(self, error: AnabranchError) -> None:
        super()._refused(error)
        if isinstance(self._segments, GroupMembership):
            self._segments.lose_all()
        self._leave_at_once()
