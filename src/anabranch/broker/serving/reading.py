"""How a subscription reads its log: the parts that all strategies share, and the ordered strategy.

A strategy owns the read position and the entries that are delivered and not acknowledged. A turn delivers one
batch and never waits. Exclusive and Failover keep no state per entry: they go back to the first pending one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from anabranch.broker.dispatch.receivers import active_consumer
from anabranch.broker.serving.consumer import ServedConsumer
from anabranch.broker.serving.context import Spawn, SubscriptionLimits
from anabranch.clock import Clock
from anabranch.errors import AnabranchError, ConsumerBusyError, CorruptDataError
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.acks import words_from_bits
from anabranch.protocol.hot_frames import encode_delivery
from anabranch.protocol.pb import pulsar_pb2 as pb

_log = logging.getLogger(__name__)

FETCH_BYTES_MAX = 2**20
"""Most bytes from disk that one subscription holds; a thousand slow subscriptions hold a gibibyte."""

WRITE_BYTES = 256 * 2**10
"""Bytes written to a consumer before its connection is asked again whether it takes more."""


@dataclass(slots=True)
class Counters:
    """Deliveries of one subscription; the numbers only grow."""

    messages_out: int = 0
    bytes_out: int = 0
    bucket_moves: int = 0
    """How often a bucket went from one consumer to another."""


class LogReader:
    """Entries of a log: from memory at once, or one batch from disk, and then it calls `ready`."""

    def __init__(
        self, log: SegmentLog, spawn: Spawn, ready: Callable[[], None], limits: SubscriptionLimits
    ) -> None:
        self._log = log
        self._spawn = spawn
        self._ready = ready
        self._max_entries = limits.batch_entries
        self._max_bytes = min(limits.batch_bytes, FETCH_BYTES_MAX)
        self._fetched: Sequence[Entry] = ()
        self._fetching = False
        self._damaged = -1

    @property
    def end(self) -> int:
        """One past the last entry that may be read."""
        return self._log.extent.next_ordinal

    def read(self, ordinal: int, max_entries: int) -> Sequence[Entry] | None:
        """Entries from `ordinal` on, none at the end, or None: ask again when `ready` is called."""
        limit = min(max_entries, self._max_entries)
        entries = self._log.read_cached(ordinal, limit, self._max_bytes)
        if entries is not None:
            self._fetched = ()
            return entries
        fetched = self._fetched
        if fetched:
            at = ordinal - fetched[0].ordinal
            if 0 <= at < len(fetched):
                return fetched[at : at + limit]
        if not self._fetching and ordinal != self._damaged:
            self._fetching = True
            self._spawn(self._fetch(ordinal))
        return None

    def forget(self) -> None:
        """Drop the batch from disk, because no consumer reads for now."""
        self._fetched = ()
        self._damaged = -1

    async def _fetch(self, ordinal: int) -> None:
        try:
            self._fetched = await self._log.read(ordinal, self._max_entries, self._max_bytes)
        except CorruptDataError as error:
            # Skipping the entry would be silent loss: the subscription stops here until an operator seeks.
            _log.error("%s: reading stops at damaged entry %d: %s", self._log.name, ordinal, error)
            self._damaged = ordinal
            return
        except AnabranchError as error:
            # The next event on the subscription tries again; a broken disk also fails appends.
            _log.error("%s: entry %d cannot be read: %s", self._log.name, ordinal, error)
            return
        finally:
            self._fetching = False
        self._ready()


@dataclass(slots=True)
class ReadPath:
    """The cursor, the log and the limits that every strategy reads with."""

    cursor: Cursor
    source: LogReader
    counters: Counters
    clock: Clock
    partition: int
    batch_entries: int
    unacked_max: int


class Reading(ABC):
    """A strategy; the subscription passes it each event and calls `turn` when an entry may be deliverable."""

    def __init__(self, path: ReadPath) -> None:
        self.path = path
        self.consumers: list[ServedConsumer] = []
        self.next = path.cursor.acks.mark
        """First ordinal not read yet."""
        self.unacked = 0
        """Delivered messages that count against the limit of the subscription."""

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        """Raise unless one more consumer may read as the connected consumers of subscription `name` do."""
        return

    @abstractmethod
    def turn(self) -> bool:
        """Deliver one batch at most; whether another turn could deliver more at once."""

    @abstractmethod
    def consumers_changed(self) -> None:
        """Take note that the subscription changed `consumers`."""

    def announce(self) -> None:
        """Notify consumers of the effect that the last change of `consumers` has on them."""
        return

    @abstractmethod
    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int] | None) -> None:
        """Deliver these entries of a consumer again, or all of them without ordinals."""

    def left(self, consumer: ServedConsumer) -> None:
        """Take back the entries of a consumer that is gone; `consumers_changed` follows."""
        return

    def acknowledged(self, ordinals: Iterable[int]) -> bool:
        """Take note of whole entries acknowledged; whether more may be delivered because of it."""
        return False

    def acknowledged_part(self, ordinal: int, messages: int) -> bool:
        """As `acknowledged`, for this many more messages of one entry."""
        return False

    def rewind(self) -> None:
        """Start again at the first entry that is not acknowledged."""
        self.next = self.path.cursor.acks.mark
        self.path.source.forget()

    @property
    def at_end(self) -> bool:
        """Whether every entry of the log is delivered."""
        return self.next >= self.path.source.end

    @property
    def wake_at_ms(self) -> int | None:
        """Wall time of the next entry that waits for its delivery time."""
        return None

    def _pending_of(self, entry: Entry) -> tuple[tuple[int, ...], int]:
        """The ack set of a partly acknowledged entry, and the number of its messages that are pending."""
        left = self.path.cursor.acks.remaining(entry.ordinal)
        if left is None:
            return (), entry.count
        return tuple(words_from_bits(left)), left.bit_count()

    def _write(
        self, consumer: ServedConsumer, buffers: list[bytes], entries: int, messages: int, size: int
    ) -> None:
        consumer.link.write_many(buffers)
        consumer.entries_out += entries
        consumer.messages_out += messages
        consumer.bytes_out += size
        consumer.last_sent_ms = self.path.clock.wall_ms()
        counters = self.path.counters
        counters.messages_out += messages
        counters.bytes_out += size


class OrderedReading(Reading):
    """Exclusive and Failover: one consumer gets all entries in order."""

    def __init__(self, path: ReadPath, *, failover: bool) -> None:
        super().__init__(path)
        self.failover = failover
        self.active: ServedConsumer | None = None
        self._announced: dict[ServedConsumer, bool] = {}

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        if not self.failover:
            raise ConsumerBusyError(f"subscription {name} has an exclusive consumer; close it first")

    def consumers_changed(self) -> None:
        before = self.active
        chosen = active_consumer(self.consumers, self.path.partition)
        self.active = chosen if isinstance(chosen, ServedConsumer) else None
        if self.active is not before:
            self.rewind()

    def announce(self) -> None:
        before, self._announced = self._announced, {}
        for consumer in self.consumers if self.failover else ():
            active = consumer is self.active
            if before.get(consumer) is not active:
                consumer.notify_active(active)
            self._announced[consumer] = active

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int] | None) -> None:
        if consumer is self.active:
            self.rewind()

    def turn(self) -> bool:
        consumer = self.active
        if consumer is None or not consumer.ready:
            return False
        path = self.path
        acks = path.cursor.acks
        self.next = acks.next_pending(self.next)
        entries = path.source.read(self.next, consumer.permits)
        if not entries:
            return False
        plain = entries[0].ordinal >= acks.top and not acks.parts
        stamped = consumer.link.wants_entry_metadata
        consumer_id, epoch, partition = consumer.id, consumer.epoch, path.partition
        permits = consumer.permits
        buffers: list[bytes] = []
        sent = size = 0
        ack_set: tuple[int, ...] = ()
        ordinal = self.next
        for entry in entries:
            (ledger, number), ordinal, index, count, timestamp, data = entry
            messages = count
            if not plain:
                if ordinal in acks:
                    continue
                ack_set, messages = self._pending_of(entry)
            stamp = (timestamp, index + count - 1) if stamped else None
            buffers += encode_delivery(consumer_id, ledger, number, partition, 0, ack_set, epoch, stamp, data)
            size += len(data)
            sent += 1
            permits -= messages
            if permits <= 0 or size >= WRITE_BYTES:
                break
        self.next = ordinal + 1
        if sent:
            messages = consumer.permits - permits
            consumer.permits = permits
            self._write(consumer, buffers, sent, messages, size)
        return permits > 0 and self.next < path.source.end
