"""Failure policies, which decide the fate of a message whose handling has failed.

Each kind of consumer has one. A stream keeps a failed message in its run, a queue lets the broker deliver it
again or sends it to the retry topic, and a queue that keeps the order of keys hands it out again from memory.
All three bury messages as dead letters, or park them, as the `DeadLetter` of the application says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from anabranch.client.consume.acknowledgements.cumulative_acks import CumulativeAcks, drop_acknowledged
from anabranch.client.consume.acknowledgements.single_acks import SingleAcks
from anabranch.client.consume.alarm import Alarm
from anabranch.client.consume.failures.letters import Letters
from anabranch.client.consume.failures.redelivery import Redelivery
from anabranch.client.consume.handlers.runs import ReadingParts
from anabranch.client.consume.inbox.inbox import unhold
from anabranch.client.consume.segments.segment_consumer import SegmentConsumer
from anabranch.client.decide.consuming.failures import Fate, after_failure
from anabranch.client.decide.consuming.key_pauses import KeyPauses
from anabranch.client.decide.consuming.letters import reconsume_times
from anabranch.client.message import Message, again, entry_of, number_of, ordering_key, place_of
from anabranch.client.options import log
from anabranch.client.received import Received
from anabranch.errors import AnabranchError, InvalidConfigurationError
from anabranch.model.ids import MessageId
from anabranch.protocol.outer import read_outer

T = TypeVar("T")

WAITING_TIMES = 10
"""Messages that may wait for paused keys before the consumer takes no more, as a multiple of its queue."""


class FailurePolicy(Generic[T]):
    """The base of all policies, and itself the one of streams, whose failed messages stay in the run."""

    def __init__(self, reading: ReadingParts[T], acks: CumulativeAcks | SingleAcks, letters: Letters) -> None:
        self.dead_letter = letters.policy
        self._context, self._segments, self._inbox, self._runs = reading
        self._acks, self._letters = acks, letters

    def redeliveries(self, message: Message[T]) -> int:
        """Return how often a message was delivered before."""
        return message.redelivery_count

    async def give_back(self, message: Message[T], delay_s: float) -> bool:
        """Let the broker deliver a message again; False if the run keeps it for the order of its key."""
        return False

    async def bury(self, message: Message[T], reason: str) -> None:
        """Send a message to the dead letter topic and acknowledge it; raises if that fails."""
        assert self._letters.dead is not None
        await self._letters.dead.forward_one(message, reason)
        self._acks.finished(message)

    def park(self, message: Message[T], reason: str) -> bool:
        """Give a message and the later ones of its bucket to the broker; False if it has no lane for them.

        They wait there until an operator releases them. Only consumers that share a segment by buckets have a
        lane to park in. A consumer that reads a segment alone keeps a parked key itself.
        """
        entry = entry_of(message)
        source = self._segments.sources.get(entry.source.segment_id)
        if source is None or source is not entry.source or source.released or not source.connected:
            return False
        is_behind = _behind_in_lane(source, entry)
        if is_behind is None:
            return False
        unhold([message, *self._take_back(lambda other: is_behind(entry_of(other)))])
        _park_at_broker(source, entry, is_behind, reason)
        drop_acknowledged(source)
        self._segments.share.progressed()
        return True

    def _take_back(self, unwanted: Callable[[Message[T]], bool]) -> list[Message[T]]:
        """Remove messages that the application does not have, because the broker keeps them."""
        return self._inbox.take_back(unwanted) + self._runs.withdraw(unwanted)

    def release_parked(self, key: str | None) -> int:
        """Let keys continue that this consumer has parked, or one of them; return their number."""
        return self._runs.release(lambda message: key in (None, message.key))

    def segment_dropped(self, source: SegmentConsumer) -> None:
        """The broker delivers the messages of a segment again that the application does not have."""

    def segment_voided(self, source: SegmentConsumer) -> None:
        """The broker delivers all messages of a segment again."""

    def close(self) -> None:
        """Give nothing back any more; after the consumer leaves the broker delivers all messages again."""


class QueueFailures(FailurePolicy[T]):
    """Lets the broker deliver failed messages again, or sends them to the retry topic."""

    _acks: SingleAcks

    def __init__(self, reading: ReadingParts[T], acks: SingleAcks, letters: Letters) -> None:
        super().__init__(reading, acks, letters)
        self.redelivery = Redelivery(reading.context.loop)

    def redeliveries(self, message: Message[T]) -> int:
        if self._letters.retry is None:
            return message.redelivery_count
        return message.redelivery_count + reconsume_times(message.properties)

    def refuse(
        self, message: Message[T] | MessageId, source: SegmentConsumer, delay_s: float, reason: str
    ) -> None:
        """Give a message back that the application has refused; `source` is the consumer of its segment."""
        _, place, bits, _ = self._acks.locate(message)
        self.redelivery.give_back(source, place, bits, delay_s)

    async def give_back(self, message: Message[T], delay_s: float) -> bool:
        if self._letters.retry is not None:
            try:
                await self._letters.retry.send(message, delay_s, {})
            except AnabranchError as error:
                log.warning("%s: %r cannot go to the retry topic: %s", self._context.topic, message, error)
            else:
                self._acks.finished(message)
                return True
        source, place, bits, _ = self._acks.locate(message)
        if source is not None:
            self.redelivery.give_back(source, place, bits, delay_s)
        return True

    def close(self) -> None:
        self.redelivery.close()


class KeyedFailures(FailurePolicy[T]):
    """Keeps refused messages, and hands them out again before all later messages of their keys.

    With messages 1 (key a), 2 (b) and 3 (a) handed out and 4 (a) in the run, a refusal of 1 pauses key a: 4
    is sifted out of the run and waits behind 1. After the pause 1 and 4 are handed out in this order.
    """

    def __init__(self, reading: ReadingParts[T], acks: SingleAcks, letters: Letters) -> None:
        super().__init__(reading, acks, letters)
        self.redelivery = Redelivery(reading.context.loop)
        """For entries that cannot be decoded, and could not become dead letters."""
        self._pauses: KeyPauses[Message[T]] = KeyPauses(ordering_key)
        self._alarm = Alarm(reading.context.loop, self._resume)

    def load(self, next_entry: Callable[[], bool]) -> bool:
        """Keep messages of paused keys from the application; `next_entry` makes the next entry the run."""
        if self._pauses.held >= WAITING_TIMES * self._segments.queue_size:
            return False
        while next_entry():
            if not self._pauses:
                return True
            self._sift()
            if self._inbox.run:
                return True
        return False

    def _sift(self) -> None:
        self._inbox.run = self._pauses.sift(reversed(self._inbox.run))[::-1]

    def refuse(
        self, message: Message[T] | MessageId, source: SegmentConsumer, delay_s: float, reason: str
    ) -> None:
        """Pause the key of a message that the application has refused."""
        if isinstance(message, MessageId):
            raise InvalidConfigurationError('a consumer with order="key" needs the message, not its id')
        if not _is_held(message):
            return
        fate = after_failure(message.redelivery_count, self.dead_letter)
        if fate is not Fate.SKIP and source.released:
            # The next reader of the segment gets the message, before all later ones of its key.
            unhold([message])
            self._segments.share.progressed()
            return
        context = self._context
        if fate is Fate.PARK:
            log.error("%s: the key of %r is parked: %s", context.topic, message, reason)
            if self.park(message, reason):
                return
        due_at = context.loop.time() + delay_s if fate is Fate.RETRY else math.inf
        self._pauses.refuse(again(message), number_of(message), due_at)
        self._sift()
        if fate is Fate.SKIP:
            context.tasks.start(self._skip(message, delay_s, reason), f"dead letter of {context.topic}")
        self._schedule()

    async def _skip(self, message: Message[T], delay_s: float, reason: str) -> None:
        number = number_of(message)
        try:
            await self.bury(message, reason)
            self._pauses.settle(message, number)
        except AnabranchError as error:
            log.warning("%s: %r cannot become a dead letter: %s", self._context.topic, message, error)
            self._pauses.settle(message, number)
            self._pauses.refuse(again(message), number, self._context.loop.time() + delay_s)
        self._schedule()

    def _take_back(self, unwanted: Callable[[Message[T]], bool]) -> list[Message[T]]:
        return super()._take_back(unwanted) + self._pauses.withdraw(unwanted)

    def release_parked(self, key: str | None) -> int:
        now = self._context.loop.time()
        hastened = self._pauses.hasten(now, lambda message: key in (None, message.key))
        self._schedule()
        return hastened + super().release_parked(key)

    def _schedule(self) -> None:
        if not self._context.closed:
            self._alarm.set(max(self._pauses.next_due, self._context.loop.time()))

    def _resume(self) -> None:
        due = self._pauses.take_due(self._context.loop.time())
        self._inbox.hand_out_again([message for message in due if _is_held(message)])
        # The consumer may have taken no message because too many waited.
        self._context.waiting.wake()
        self._schedule()

    def segment_dropped(self, source: SegmentConsumer) -> None:
        if source.released:
            self._forget(source)

    def segment_voided(self, source: SegmentConsumer) -> None:
        self._forget(source)
        self._context.loop.call_soon(self._segments.share.progressed)

    def _forget(self, source: SegmentConsumer) -> None:
        """Let the broker deliver waiting messages of a segment again, here or elsewhere."""
        unhold(self._pauses.withdraw(lambda message: entry_of(message).source is source))
        self._schedule()

    def close(self) -> None:
        self._alarm.cancel()
        self.redelivery.close()


def _is_held(message: Message[Any]) -> bool:
    """Return whether a message is neither acknowledged nor delivered to another consumer."""
    entry, index = place_of(message)
    source: SegmentConsumer = entry.source  # type: ignore[assignment]
    return bool(source.held.get(entry.position, 0) >> index & 1)


def _behind_in_lane(source: SegmentConsumer, first: Received) -> Callable[[Received], bool] | None:
    """Return a predicate for entries of the bucket of `first` from there on; None without a lane."""
    hash_ = _bucket_hash(first)
    lane = next((part for part in source.attachment.bucket_ranges if part.start <= hash_ <= part.end), None)
    if lane is None:
        return None

    def is_behind(entry: Received) -> bool:
        if entry.source is not source or entry.position < first.position:
            return False
        return lane.start <= _bucket_hash(entry) <= lane.end

    return is_behind


def _bucket_hash(entry: Received) -> int:
    try:
        return read_outer(entry.data).bucket_hash
    except AnabranchError:
        return -1


def _park_at_broker(
    source: SegmentConsumer, first: Received, is_behind: Callable[[Received], bool], reason: str
) -> None:
    """Send an entry back to be parked, after all acknowledgements so far."""
    for entry in filter(is_behind, list(source.entries)):
        source.entries.remove(entry)
        source.unhold(entry.position, entry.wanted)
        source.give_back(entry.wanted.bit_count())
    source.flush_acks()
    # The broker may have sent more of the bucket before this command reaches it.
    source.stale.append(is_behind)
    source.redeliver([first.position], park=reason)
    source.when_carried_out(lambda: source.stale.remove(is_behind))
