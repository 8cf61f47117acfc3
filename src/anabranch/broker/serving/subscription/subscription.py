"""One subscription of one log: its cursor, its consumers, and when entries are delivered.

Everything here runs on the event loop without waiting, except `seek` and `drained`, which wait for the disk.
Must not know connections beyond `ClientLink`, nor commands beyond those it answers with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from anabranch.broker.serving.context import SubscriptionContext
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.counters import Counters
from anabranch.broker.serving.delivery.log_reader import LogReader
from anabranch.broker.serving.delivery.read_path import ReadPath
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.reading.reading import Reading
from anabranch.broker.serving.reading.strategies import ChooseReading, Kind, kind_name, make_reading
from anabranch.broker.serving.subscription.acknowledging import DurableAnswers, Ids, LogAcknowledgements
from anabranch.broker.serving.subscription.backing import Backing
from anabranch.broker.serving.subscription.delivery_limits import DeliveryLimits
from anabranch.broker.serving.subscription.draining import DrainReporter
from anabranch.broker.serving.subscription.kept import KeptSubscription
from anabranch.clock import Clock
from anabranch.controller.decide.admission import ReaderState, Roster
from anabranch.errors import ConsumerBusyError, DamagedEntriesError
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import Entry
from anabranch.model.drains import Ranges
from anabranch.protocol.pb import pulsar_pb2 as pb

SLEEP_S_MAX: Final = 3600.0
"""So that a stepped wall clock is noticed."""


class WakeTimer:
    """Wakes a subscription when its next entry may be delivered; a new time replaces the old one."""

    __slots__ = ("_clock", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def set(self, wall_ms: int | None, wake: Callable[[], None]) -> None:
        """Call `wake` then, in an hour at most; None leaves the timer as it is."""
        if wall_ms is not None:
            self.cancel()
            delay = min(max(wall_ms - self._clock.wall_ms(), 1) / 1000, SLEEP_S_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay, wake)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Departures:
    """Wakes a caller whenever a consumer leaves."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: asyncio.Event | None = None

    def note(self) -> None:
        """Take note that a consumer left."""
        if self._left is not None:
            self._left.set()

    async def wait_until(self, is_free: Callable[[], bool], within_s: float) -> None:
        """Wait until `is_free` returns True, at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not is_free():
                    self._left = self._left or asyncio.Event()
                    self._left.clear()
                    await self._left.wait()


class Subscription:
    """Consumers of one type on one cursor. The type is fixed while a consumer is connected."""

    def __init__(
        self,
        cursor: Cursor,
        context: SubscriptionContext,
        *,
        durable: bool,
        choose_reading: ChooseReading = make_reading,
    ) -> None:
        self.name, self.log, self.backing = cursor.name, context.log, Backing(cursor, context)
        self.cursor = cursor = self.backing.cursor
        self.durable, self.counters = durable, Counters(mark=cursor.acks.mark)
        self.kind: Kind = pb.CommandSubscribe.Exclusive
        self.last_acked_ms, self.confirmed = 0, True
        """Whether the cursor itself is durable; until then no client may hear of the subscription."""
        self.admitting: Roster | None = None
        """The roster by which members attach without asking the leader. None after a seek: the leader may
        have taken the segment from its readers for it, and its roster may not have arrived."""
        broker, limits, self._use = context.broker, context.broker.limits, context.use
        self.answers, self._usage = DurableAnswers(cursor, broker.spawn), broker.usage
        self.awaited_until_s = 0.0
        """Until when a reader that a seek has disconnected may come back; see `ServedLog.await_return`."""
        self.busy = asyncio.Lock()
        """Held while the cursor is moved, so that a consumer that comes back meanwhile waits."""
        self._clock, self._later, self._times = broker.clock, broker.later, broker.dispatch_times
        self._acks = LogAcknowledgements(self.backing.log, cursor)
        report = partial(context.report_drained, self.name)
        self._drains = DrainReporter(self.backing.log, cursor, self._use, broker.spawn, report)
        self._skips_damaged, self._scheduled = limits.skips_damaged, False
        self._timer, self.departures = WakeTimer(broker.clock), Departures()
        self.source = LogReader(self.backing.log, broker.spawn, self.schedule, limits, self._pass_damaged)
        self.source.counters = self.counters
        bounds = limits.batch_entries, limits.unacked_max, limits.keyed, limits.ordered_delays
        self._path = ReadPath(cursor, self.source, self.counters, broker.clock, context.partition, *bounds)
        self._limits = DeliveryLimits(context.throttle, self.name, self._path)
        self._choose_reading = choose_reading
        self.reading: Reading = choose_reading(self._path, self.kind, pb.KeySharedMeta(), None)
        self._roster: Roster | None = None

    @property
    def consumers(self) -> Collection[ServedConsumer]:
        return self.reading.consumers

    @property
    def backlog(self) -> int:
        """Entries not acknowledged yet."""
        return self.cursor.acks.pending_count(self.log.extent.next_ordinal)

    @property
    def done(self) -> bool:
        """Whether the log is sealed and all of it acknowledged, or for a reader delivered."""
        return self._drains.done if self.durable else self.log.sealed and self.reading.at_end

    @property
    def troubles(self) -> list[str]:
        """Why entries cannot be read now, and the damaged entries that were passed, in words."""
        passed = self.counters.damaged_entries
        were = "entry was" if passed == 1 else "entries were"
        found = (f"{passed} damaged {were} passed without delivery",) if passed else ()
        told = *self.reading.explained, *found, *self.backing.troubles
        return [text for text in (self.source.trouble, self.reading.trouble, *told) if text is not None]

    @property
    def working(self) -> bool:
        """Whether a delivery, a read or a report of drains is under way or due."""
        parts = self.source, self._drains, self.backing
        return self._scheduled or not self.confirmed or any(part.working for part in parts)

    def add(self, consumer: ServedConsumer, kind: Kind, meta: pb.KeySharedMeta) -> None:
        """Let a consumer attach; ConsumerBusyError or ConsumerAssignError if connected ones exclude it."""
        state = self.reader_state(consumer, kind)
        if state == "gone":
            raise ConsumerBusyError(
                f"generation {consumer.options.generation} of {consumer.options.member} is over"
            )
        if self.consumers:
            if kind != self.kind:
                raise ConsumerBusyError(f"subscription {self.name} is in use as {kind_name(self.kind)}")
            self.reading.sharing.check_fits(self.name, meta)
            if consumer.options.read_compacted != self.backing.is_compacted:
                raise ConsumerBusyError(f"the consumers of {self.name} do not agree on read_compacted")
        else:
            self.kind = kind
            self._read(compacted=consumer.options.read_compacted)
            self.reading = self._choose_reading(self._path, kind, meta, self.reading)
        self._limits.follow(consumer.options)
        consumer.ranges = self.reading.sharing.ranges_for(meta)
        consumer.retired, self.awaited_until_s = state == "finishes", 0.0
        self.reading.join(consumer)
        self._consumers_changed()

    def _read(self, *, compacted: bool) -> None:
        log = self.backing.view(compacted=compacted)
        if log is not self.source.log:
            self.source.read_from(log)
            self._acks = LogAcknowledgements(log, self.cursor)
            self._path.kept_bits = self.backing.kept_bits

    def restrict(self, roster: Roster) -> None:
        """Let only the members of this roster read, unless the subscription has a newer roster."""
        known = self._roster
        if known is not None and roster.generation < known.generation:
            return
        self._roster = self.admitting = roster.after(known)
        for consumer in list(self.consumers):
            state = self.reader_state(consumer, self.kind)
            if state == "gone":
                self.remove(consumer)
                consumer.close()
            consumer.retired = state == "finishes"
        self._consumers_changed()
        self.schedule()

    def _consumers_changed(self) -> None:
        # Only the order between segments closes buckets; a consumer that never registered reads them all.
        roster = self._roster
        members = roster is not None and any(one.options.member is not None for one in self.consumers)
        self.reading.open = roster.open if members and roster is not None else None
        self.reading.consumers_changed()

    def reader_state(self, consumer: ServedConsumer, kind: Kind) -> ReaderState:
        """Return the rights of a consumer by the roster; a consumer that never registered reads."""
        member = consumer.options.member
        if member is None or self._roster is None:
            return "reads"
        by_buckets = kind == pb.CommandSubscribe.Key_Shared
        return self._roster.state_of(member, consumer.options.generation, by_buckets=by_buckets)

    def notify_attached(self) -> None:
        """Send consumers the news that follow an attachment, after the new consumer has its answer."""
        self.reading.sharing.announce()
        self.check_end()

    def remove(self, consumer: ServedConsumer) -> None:
        """Forget a consumer; the entries that it did not acknowledge go to the others."""
        if consumer in self.reading.consumers:
            self._usage.discard(consumer)
            self.reading.left(consumer)
            self.reading.consumers_changed()
            self.reading.sharing.announce()
            self._limits.forget(self.schedule)
            self.schedule()
            self.departures.note()

    def close_consumers(self, *, moved: bool = False) -> None:
        """Disconnect all consumers; their clients subscribe again, elsewhere if the log `moved`."""
        for consumer in list(self.consumers):
            self.remove(consumer)
            consumer.close(moved=moved)
        self._timer.cancel()

    def unload(self) -> KeptSubscription:
        """Stop for good, without consumers and work; returns the state that is not in the cursor."""
        self.close_consumers()
        self.source.close()
        self.backing.close()
        kept = KeptSubscription(self.counters, self.source.errors, self.last_acked_ms, self.kind)
        return kept._replace(roster=self._roster, admitting=self.admitting, gates=self._limits.gates)

    def resume(self, kept: KeptSubscription) -> None:
        """Go on from the state of an unloaded subscription."""
        self.counters = self._path.counters = self.source.counters = kept.counters
        self.source.errors, self.last_acked_ms, self.kind = kept.read_errors, kept.last_acked_ms, kept.kind
        self._roster, self.admitting, self._limits.gates = kept.roster, kept.admitting, kept.gates

    def flow(self, consumer: ServedConsumer, permits: int) -> None:
        consumer.grant(permits)
        self.counters.flow_ms = self._clock.wall_ms()
        self.schedule()

    def schedule(self) -> None:
        """Deliver soon; many reasons in one turn of the loop make one delivery."""
        if not self._scheduled and (self.reading.consumers or self.log.sealed):
            self._scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._turn, loop.time())

    def _turn(self, woken_s: float) -> None:
        self._scheduled = False
        if self._limits.must_wait(self.schedule):
            return
        self.pass_trimmed()
        sent = self.counters.messages_out
        more = self.reading.turn()
        now_s = asyncio.get_running_loop().time()
        if self.counters.messages_out != sent:
            self._times.observe(now_s - woken_s)
            self._limits.delivered()
        if more:
            self._scheduled = True
            self._later(partial(self._turn, now_s))
        elif self.log.sealed:
            self.check_end()
        self._timer.set(self.reading.wake_at_ms, self.schedule)
        if self.reading.lanes is not None:
            self.backing.look_soon(self._path.next)

    def redeliver(
        self, consumer: ServedConsumer, ids: Ids, epoch: int | None, retry: Retry = AT_ONCE
    ) -> Iterator[None]:
        """Deliver these entries of the consumer again, or all of them without ids, in slices."""
        if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
            consumer.epoch = epoch
        return self._acks.redeliver(consumer, ids, retry, self.reading, self.schedule)

    def acknowledge(self, consumer: ServedConsumer, command: pb.CommandAck) -> Iterator[None] | None:
        """Take an ACK, one with many ids in the slices returned; unknown and repeated ids change nothing."""
        consumer.last_acked_ms = self.last_acked_ms = self._clock.wall_ms()
        return self._acks.take(command, self.reading, self._acknowledged)

    def _acknowledged(self, more: bool) -> None:
        if more:
            self.schedule()
        if self.log.sealed:
            self.check_end()

    async def seek(self, ordinal: int, remaining: int | None = None) -> None:
        """Disconnect all consumers and make this the first entry not acknowledged, durably.

        `remaining` are the messages of that entry which still count, when the aim is inside a batch.
        """
        with self._use.call():
            await self._move(ordinal, remaining)
        self.check_end()

    async def _move(self, ordinal: int, remaining: int | None) -> None:
        async with self.busy:
            self.close_consumers()
            self.admitting = None
            self.cursor.reset(ordinal)
            extent = self.log.extent
            if remaining is not None and ordinal < extent.next_ordinal:
                count = extent.count_of(ordinal)
                self.cursor.acknowledge_part(ordinal, remaining, count)
            self.reading.rewind()
            self._drains.cursor_moved()
            await self.cursor.flush()

    def pass_trimmed(self) -> None:
        """Count trimmed entries as acknowledged: a reader was too slow, or a seek met a trim."""
        if passed := self.backing.pass_trimmed():
            self.reading.acknowledged(passed)
            self.check_end()

    def _pass_damaged(self, error: DamagedEntriesError) -> Sequence[Entry] | None:
        """Pass damaged entries, or None to stop; a reader that counts messages gets a mark and decides."""
        marked = not self.durable and all(consumer.counts_messages for consumer in self.consumers)
        if not marked and not self._skips_damaged:
            return None
        lost = self._acks.pass_damaged(error, self.counters, keep_last=marked)
        self.reading.acknowledged(lost)
        self.check_end()
        return [self._acks.mark_of(error)] if marked else []

    def check_end(self) -> None:
        """Notify consumers of the end of the log, and the leader of the parts that are drained."""
        if self.done:
            for consumer in self.consumers:
                consumer.notify_end()
        if self.durable:
            self._drains.check(
                at_end=self._path.next >= self.log.extent.next_ordinal,
                by_buckets=bool(self.consumers) and self.kind != pb.CommandSubscribe.Shared,
            )

    async def drained(self) -> Ranges:
        """Return the bucket hashes of a sealed log that have nothing pending, as far as is known; durable."""
        return await self._drains.drained()
