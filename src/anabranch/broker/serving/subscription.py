"""One subscription of one log: its cursor, its consumers, acknowledgements, and when to deliver.

Everything here runs on the event loop without waiting, except what must be durable before somebody is told.
Must not know connections beyond `ClientLink`, nor which commands exist beyond those it answers with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from anabranch.broker.dispatch.selectors import bucket_boundaries, sticky_ranges
from anabranch.broker.serving.client_link import ClientLink
from anabranch.broker.serving.consumer import ServedConsumer
from anabranch.broker.serving.draining import BucketDrain
from anabranch.broker.serving.keyed_reading import KeyedReading
from anabranch.broker.serving.log_reader import LogReader, Spawn
from anabranch.broker.serving.reading import Counters, OrderedReading, Reading, ReadPath
from anabranch.broker.serving.shared_reading import PendingReading, SharedReading
from anabranch.clock import Clock
from anabranch.controller.decide.admission import ReaderState, Roster
from anabranch.errors import AnabranchError, ConsumerAssignError, ConsumerBusyError
from anabranch.ledger.storage import Cursor, SegmentLog
from anabranch.model.acks import AckSet, bits_from_words
from anabranch.model.drains import ALL, Ranges
from anabranch.model.ids import EARLIEST, Position
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for

_logger = logging.getLogger(__name__)

ANSWER_BYTES = 256
"""What an answer that waits for the disk counts in its connection, which bounds how many there are."""

Kind = int
"""A CommandSubscribe.SubType."""

_SHARED: Kind = pb.CommandSubscribe.Shared


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """Bounds of the read path, from the configuration."""

    batch_entries: int = 100
    batch_bytes: int = 5 * 2**20
    unacked_max: int = 200_000
    """Messages over all consumers of a shared subscription."""


class VolatileCursor:
    """A reader's cursor: lives with its consumers and is never stored."""

    def __init__(self, name: str, ordinal: int) -> None:
        self.name = name
        self.acks = AckSet(ordinal)
        self.properties: Mapping[str, str] = {}

    def acknowledge(self, ordinals: Iterable[int]) -> None:
        self.acks.acknowledge(ordinals)

    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> None:
        self.acks.acknowledge_part(ordinal, remaining, count)

    def acknowledge_up_to(self, ordinal: int) -> None:
        self.acks.acknowledge_up_to(ordinal)

    def reset(self, ordinal: int) -> None:
        self.acks.reset(ordinal)

    async def flush(self) -> None:
        return None


class Subscription:
    """Consumers of one type on one cursor. A type holds while anybody is connected."""

    def __init__(
        self,
        name: str,
        log: SegmentLog,
        cursor: Cursor,
        *,
        durable: bool,
        partition: int,
        limits: SubscriptionLimits,
        clock: Clock,
        spawn: Spawn,
        drained: Callable[[Subscription, Ranges], None],
        splits: Callable[[], tuple[int, ...]] = lambda: (),
    ) -> None:
        self.name = name
        self.log = log
        self.cursor = cursor
        self.durable = durable
        self.counters = Counters()
        self.kind: Kind = pb.CommandSubscribe.Exclusive
        self.last_acked_ms = 0
        self.confirmed = True
        """Whether the cursor itself is durable; nobody may be told of a subscription that is not."""
        self._clock = clock
        self._spawn = spawn
        self._drained = drained
        self._told_drained = False
        self._buckets = BucketDrain(log, cursor, splits, spawn, self._announce_buckets)
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered: list[tuple[ClientLink, pb.CommandAckResponse]] = []
        self._answering = False
        source = LogReader(
            log, spawn, self.schedule, max_entries=limits.batch_entries, max_bytes=limits.batch_bytes
        )
        self._path = ReadPath(
            cursor,
            source,
            self.counters,
            clock,
            partition,
            limits.batch_entries,
            limits.unacked_max,
        )
        self.reading: Reading = OrderedReading(self._path, failover=False)
        self.busy = asyncio.Lock()
        """Held while the cursor is moved, so that a consumer that comes back meanwhile waits."""
        self._left = asyncio.Event()
        self._roster: Roster | None = None
        self.admitting: Roster | None = None
        """The roster by which members attach without the leader's word; none after a seek, which may have
        taken the log from its readers before their owner heard so."""

    @property
    def consumers(self) -> Sequence[ServedConsumer]:
        return self.reading.consumers

    @property
    def backlog(self) -> int:
        """Entries not acknowledged yet."""
        return self.cursor.acks.pending_count(self.log.extent.next_ordinal)

    @property
    def backlog_messages(self) -> int:
        """Messages not acknowledged yet; entries acknowledged out of order count with the average size."""
        first = max(self.cursor.acks.mark, self.log.extent.first_ordinal)
        entries = self.log.extent.next_ordinal - first
        behind = self.log.extent.next_index - self.log.extent.index_of(first) if entries > 0 else 0
        return round(behind * self.backlog / entries) if behind else 0

    @property
    def done(self) -> bool:
        """Whether the log is sealed and all of it acknowledged, or for a reader delivered."""
        if not self.log.sealed:
            return False
        return self.cursor.acks.mark >= self.log.extent.next_ordinal if self.durable else self.reading.at_end

    # Consumers.

    def add(self, consumer: ServedConsumer, kind: Kind, meta: pb.KeySharedMeta) -> None:
        """Let a consumer in; ConsumerBusyError or ConsumerAssignError when those connected exclude it."""
        standing = self.standing(consumer, kind)
        if standing == "gone":
            raise ConsumerBusyError(f"generation {consumer.generation} of consumer {consumer.member} is over")
        if self.consumers:
            self._check_fits(consumer, kind, meta)
        else:
            self.kind = kind
            self.reading = _make_reading(self._path, kind, meta)
        if kind == pb.CommandSubscribe.Key_Shared:
            consumer.ranges = self._ranges_for(meta)
        consumer.retired = standing == "finishes"
        self.reading.consumers.append(consumer)
        self._members_changed()

    def restrict(self, roster: Roster) -> None:
        """Only these members read from now on, unless a newer roster came before."""
        known = self._roster
        if known is not None and roster.generation <= known.generation:
            if roster.generation < known.generation:
                return
            roster = roster.widened(known)
        self._roster = self.admitting = roster
        for consumer in list(self.consumers):
            standing = self.standing(consumer, self.kind)
            if standing == "gone":
                self.remove(consumer)
                consumer.close()
            else:
                consumer.retired = standing == "finishes"
        self._members_changed()
        self.schedule()

    def _members_changed(self) -> None:
        if isinstance(self.reading, KeyedReading):
            # Whoever never registered looks after the order by itself.
            members = any(consumer.member is not None for consumer in self.consumers)
            self.reading.open = self._roster.open if members and self._roster is not None else None
        self.reading.members_changed()

    def standing(self, consumer: ServedConsumer, kind: Kind) -> ReaderState:
        """What a consumer may do here; one that is no member's may do everything."""
        if consumer.member is None or self._roster is None:
            return "reads"
        by_buckets = kind == pb.CommandSubscribe.Key_Shared
        return self._roster.standing(consumer.member, consumer.generation, by_buckets=by_buckets)

    def greet(self) -> None:
        """A consumer knows that it was let in: now it and the others may hear what follows from that."""
        self.reading.announce()
        self.check_end()

    def remove(self, consumer: ServedConsumer) -> None:
        """The consumer is gone; what it did not acknowledge goes to the others."""
        if consumer in self.reading.consumers:
            self.reading.consumers.remove(consumer)
            self.reading.left(consumer)
            self.reading.members_changed()
            self.reading.announce()
            self.schedule()
            self._left.set()

    async def free(self, within_s: float) -> None:
        """Wait until nobody reads, but not for longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.consumers:
                    self._left.clear()
                    await self._left.wait()

    def close_consumers(self, *, moved: bool = False) -> None:
        """Send everybody away; their clients come back by themselves, to wherever it moved if it did."""
        for consumer in list(self.consumers):
            self.remove(consumer)
            consumer.close(moved=moved)
        if self._timer is not None:
            self._timer.cancel()

    def _check_fits(self, consumer: ServedConsumer, kind: Kind, meta: pb.KeySharedMeta) -> None:
        if kind != self.kind:
            raise ConsumerBusyError(f"subscription {self.name} is in use as {kind_name(self.kind)}")
        if kind == pb.CommandSubscribe.Exclusive:
            raise ConsumerBusyError(f"subscription {self.name} has an exclusive consumer")
        if isinstance(self.reading, KeyedReading):
            buckets = self.reading.boundaries
            if meta.entryBucketDispatch != (buckets is not None):
                raise ConsumerBusyError(f"subscription {self.name} is in use with another kind of dispatch")
            if buckets is not None:
                if bucket_boundaries(_pairs(meta)) != buckets:
                    raise ConsumerAssignError(f"subscription {self.name} is in use with other buckets")
            elif (meta.keySharedMode == pb.STICKY) != self.reading.sticky:
                raise ConsumerBusyError(f"subscription {self.name} is in use with another Key_Shared mode")

    def _ranges_for(self, meta: pb.KeySharedMeta) -> tuple[HashRange, ...]:
        if meta.entryBucketDispatch:
            return tuple(HashRange(start, end) for start, end in _pairs(meta))
        if meta.keySharedMode != pb.STICKY:
            return ()
        taken = [part for other in self.consumers for part in other.ranges]
        return sticky_ranges(_pairs(meta), taken)

    # Delivery.

    def flow(self, consumer: ServedConsumer, permits: int) -> None:
        consumer.permits += permits
        self.schedule()

    def schedule(self) -> None:
        """Deliver soon; many reasons in one turn of the loop make one delivery."""
        if not self._scheduled and (self.reading.consumers or self.log.sealed):
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self.pass_trimmed()
        if self.reading.turn():
            self.schedule()
        elif self.log.sealed:
            self.check_end()
        wake_ms = self.reading.wake_at_ms
        if wake_ms is not None:
            self._wake_later(wake_ms)

    def _wake_later(self, wall_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # An hour at most, so that a stepped wall clock is noticed.
        delay = min(max(wall_ms - self._clock.wall_ms(), 1) / 1000, 3600.0)
        self._timer = asyncio.get_running_loop().call_later(delay, self.schedule)

    def redeliver(self, consumer: ServedConsumer, ids: Sequence[pb.MessageIdData], epoch: int | None) -> None:
        if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
            consumer.epoch = epoch
        wanted = [self._ordinal(message_id) for message_id in ids] if ids else None
        known = None if wanted is None else [ordinal for ordinal in wanted if ordinal is not None]
        self.reading.redeliver(consumer, known)
        self.schedule()

    # Acknowledgement.

    def acknowledge(self, consumer: ServedConsumer, command: pb.CommandAck) -> None:
        """Take an ACK; ids that are unknown or acknowledged already are fine."""
        consumer.last_acked_ms = self.last_acked_ms = self._clock.wall_ms()
        if command.ack_type == pb.CommandAck.Cumulative:
            # Shared types have no order to be cumulative in; Pulsar ignores it there, and so do we.
            more = False
            if not isinstance(self.reading, PendingReading) and len(command.message_id) == 1:
                self._acknowledge_up_to(command.message_id[0])
                consumer.acked += 1
        else:
            more = self._acknowledge_each(command.message_id)
            consumer.acked += len(command.message_id)
        if self.log.sealed:
            self.check_end()
        if more:
            self.schedule()

    def answer_when_durable(self, link: ClientLink, response: pb.CommandAckResponse) -> None:
        """Send the response once everything acknowledged so far is on disk."""
        self._unanswered.append((link, response))
        link.publish_bytes += ANSWER_BYTES
        if not self._answering:
            self._answering = True
            self._spawn(self._answer())

    async def _answer(self) -> None:
        try:
            while self._unanswered:
                batch, self._unanswered = self._unanswered, []
                failure: AnabranchError | None = None
                try:
                    await self.cursor.flush()
                except AnabranchError as error:
                    failure = error
                for link, response in batch:
                    if failure is not None:
                        response.error = code_for(failure)
                        response.message = str(failure)
                    link.send(response)
                    link.publish_bytes -= ANSWER_BYTES
                    if link.throttled:
                        link.relieve()
        finally:
            self._answering = False

    def _acknowledge_each(self, ids: Iterable[pb.MessageIdData]) -> bool:
        whole: list[int] = []
        more = False
        for message_id in ids:
            ordinal = self._ordinal(message_id)
            if ordinal is None:
                continue
            if message_id.ack_set:
                more |= self._acknowledge_part(ordinal, bits_from_words(message_id.ack_set))
            else:
                whole.append(ordinal)
        if whole:
            self.cursor.acknowledge(whole)
            self.counters.acked += len(whole)
            more |= self.reading.acknowledged(whole)
        return more

    def _acknowledge_part(self, ordinal: int, remaining: int) -> bool:
        acks = self.cursor.acks
        if ordinal in acks:
            return False
        count = self.log.extent.index_of(ordinal + 1) - self.log.extent.index_of(ordinal)
        before = acks.remaining(ordinal)
        left = ((1 << count) - 1 if before is None else before) & remaining
        cleared = (count if before is None else before.bit_count()) - left.bit_count()
        self.cursor.acknowledge_part(ordinal, remaining, count)
        if left == 0:
            self.counters.acked += 1
            return self.reading.acknowledged((ordinal,))
        return self.reading.acknowledged_part(ordinal, cleared)

    def _acknowledge_up_to(self, message_id: pb.MessageIdData) -> None:
        position, extent = position_from(message_id), self.log.extent
        end = extent.next_ordinal
        if end == extent.first_ordinal or position > extent.position_of(end - 1):
            # Beyond the last entry: it would acknowledge what nobody has written yet.
            return
        before = self.cursor.acks.mark
        if message_id.ack_set:
            ordinal = extent.ordinal_of(position)
            self.cursor.acknowledge_up_to(ordinal)
            if self._ordinal(message_id) is not None:
                self._acknowledge_part(ordinal, bits_from_words(message_id.ack_set))
        else:
            self.cursor.acknowledge_up_to(extent.ordinal_of(Position(position.ledger, position.entry + 1)))
        self.counters.acked += max(0, self.cursor.acks.mark - before)

    def _ordinal(self, message_id: pb.MessageIdData) -> int | None:
        """The stored entry an id names, None when there is none."""
        position = Position(message_id.ledgerId, message_id.entryId)
        ordinal = self.log.extent.ordinal_of(position)
        if ordinal >= self.log.extent.next_ordinal or self.log.extent.position_of(ordinal) != position:
            return None
        return ordinal

    # Moving the cursor.

    async def seek(self, ordinal: int, remaining: int | None = None) -> None:
        """Send everybody away and make this the first entry not acknowledged, durably.

        `remaining` are the messages of that entry which still count, when the aim is inside a batch.
        """
        async with self.busy:
            self.close_consumers()
            self.admitting = None
            self.cursor.reset(ordinal)
            if remaining is not None and ordinal < self.log.extent.next_ordinal:
                count = self.log.extent.index_of(ordinal + 1) - self.log.extent.index_of(ordinal)
                self.cursor.acknowledge_part(ordinal, remaining, count)
            self.reading.rewind()
            self._told_drained = False
            self._buckets.forget()
            await self.cursor.flush()
        self.check_end()

    def pass_trimmed(self) -> None:
        """What is not stored any more counts as acknowledged: a reader was too slow, or a seek met a trim."""
        first, mark = self.log.extent.first_ordinal, self.cursor.acks.mark
        # A trimmed log keeps its last entry. One with nothing left is being deleted, and nobody drained that.
        if mark < first < self.log.extent.next_ordinal:
            self.cursor.acknowledge_up_to(first)
            self.reading.acknowledged(range(mark, first))
            self.check_end()

    # The end of a sealed log.

    def check_end(self) -> None:
        """Tell consumers that nothing will come any more, and the controller what is all acknowledged."""
        if not self.done:
            if self.durable and self.log.sealed and self.consumers and self.kind != _SHARED:
                self._buckets.look(at_end=self.reading.next >= self.log.extent.next_ordinal)
            return
        for consumer in self.consumers:
            consumer.tell_end()
        if self.durable and not self._told_drained:
            self._told_drained = True
            self._spawn(self._announce_drained())

    async def _announce_drained(self) -> None:
        """Acknowledgements first become durable: a child must not open on ones that a crash takes back."""
        try:
            await self.cursor.flush()
        except AnabranchError as error:
            _logger.error("%s: the end of %s is not durable: %s", self.log.name, self.name, error)
            self._told_drained = False
            return
        if self.done:
            self._drained(self, ALL)
        else:
            self._told_drained = False

    def _announce_buckets(self, drained: Ranges) -> None:
        if not self.done:
            self._drained(self, drained)

    async def drained(self) -> Ranges:
        """The bucket hashes of a sealed log that have nothing pending, as far as is known; durable."""
        if not self.done:
            return await self._buckets.drained() if self.log.sealed else ()
        await self.cursor.flush()
        return ALL if self.done else ()

    @property
    def mark_delete(self) -> Position:
        """The last entry of the run that is acknowledged from the beginning; entry -1 when there is none."""
        mark = self.cursor.acks.mark
        if mark > self.log.extent.first_ordinal:
            return self.log.extent.position_of(mark - 1)
        return Position(self.log.extent.position_of(self.log.extent.first_ordinal).ledger, -1)


def _make_reading(path: ReadPath, kind: Kind, meta: pb.KeySharedMeta) -> Reading:
    if kind == pb.CommandSubscribe.Shared:
        return SharedReading(path)
    if kind != pb.CommandSubscribe.Key_Shared:
        return OrderedReading(path, failover=kind == pb.CommandSubscribe.Failover)
    if meta.entryBucketDispatch:
        return KeyedReading(path, boundaries=bucket_boundaries(_pairs(meta)))
    return KeyedReading(path, sticky=meta.keySharedMode == pb.STICKY)


def kind_name(kind: Kind) -> str:
    """How Pulsar spells a subscription type."""
    return pb.CommandSubscribe.SubType.Name(pb.CommandSubscribe.SubType.ValueType(kind))


def _pairs(meta: pb.KeySharedMeta) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in meta.hashRanges]


def position_from(message_id: pb.MessageIdData) -> Position:
    """The position of an id on the wire, where -1 looks like 2^64 - 1."""
    ledger, entry = message_id.ledgerId, message_id.entryId
    if ledger >= 2**63:
        return EARLIEST
    return Position(ledger, entry - 2**64 if entry >= 2**63 else entry)
