"""How a subscription reads its log: the parts that all strategies share, and the ordered strategy.

A strategy owns the read position and the entries that are delivered and not acknowledged. A turn delivers one
batch and never waits. Exclusive and Failover keep no state per entry: they go back to the first pending one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from anabranch.broker.dispatch.keyed_strategies import ByLanes, KeyedStrategy
from anabranch.broker.dispatch.receivers import Ranking
from anabranch.broker.serving.consumer import ServedConsumer
from anabranch.broker.serving.log_reader import Counters, LogReader
from anabranch.broker.serving.retries import AT_ONCE, Retry
from anabranch.clock import Clock
from anabranch.errors import ConsumerBusyError
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import Entry
from anabranch.model.acks import words_from_bits
from anabranch.model.ranges import HashRange
from anabranch.protocol.claims import MESSAGE_BYTES_MIN, countable_messages, permits_for
from anabranch.protocol.hot_frames import encode_delivery
from anabranch.protocol.outer import head_without, read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb

WRITE_BYTES = 256 * 2**10
"""Bytes written to a consumer before its connection is asked again whether it takes more."""


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
    keyed: KeyedStrategy = field(default_factory=ByLanes)
    kept_bits: Callable[[Entry], int | None] | None = None
    """For compacted reading: the messages of an entry that a compaction kept, None for all of them."""


class Reading(ABC):
    """A strategy; the subscription passes it each event and calls `turn` when an entry may be deliverable."""

    def __init__(self, path: ReadPath) -> None:
        self.path = path
        self.consumers: dict[ServedConsumer, None] = {}
        """Consumers in the order of their arrival."""
        self.next = path.cursor.acks.mark
        """First ordinal not read yet."""
        self.unacked = 0
        """Delivered messages that count against the limit of the subscription."""
        self.trouble: str | None = None
        """Why the strategy does not read on, in words; None while it does."""

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
    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        """Deliver these entries of a consumer again; an ordered strategy all of them."""

    def join(self, consumer: ServedConsumer) -> None:
        """Take a new consumer; `consumers_changed` follows."""
        self.consumers[consumer] = None

    def left(self, consumer: ServedConsumer) -> None:
        """Forget a consumer that is gone, and take its entries back; `consumers_changed` follows."""
        del self.consumers[consumer]

    def acknowledged(self, ordinals: Iterable[int]) -> bool:
        """Take note of whole entries acknowledged; whether more may be delivered because of it."""
        return False

    def acknowledged_part(self, ordinal: int, messages: int) -> bool:
        """As `acknowledged`, for this many more messages of one entry."""
        return False

    def unacked_of(self, ordinal: int) -> int:
        """Messages of a delivered entry that are not acknowledged; 0 if that is not known."""
        return 0

    def rewind(self) -> None:
        """Start again at the first entry that is not acknowledged."""
        self.next = self.path.cursor.acks.mark
        self.path.source.forget()

    @property
    def explained(self) -> Sequence[str]:
        """Deliveries that go another way than usual, in words."""
        return ()

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
        kept = None if self.path.kept_bits is None else self.path.kept_bits(entry)
        if kept is not None:
            left = kept if left is None else left & kept
        if left is None:
            return (), permits_for(entry.count, entry.data)
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


def _without_unwanted(entry: Entry, wanted: HashRange) -> Entry:
    """The entry, without its payload if no message in it has a wanted bucket hash.

    The reader counts by the claim of such an entry, so one that was stored with another count stays whole.
    """
    head = head_without(entry.data, wanted)
    if head is None or read_outer(head).num_messages != entry.count:
        return entry
    return entry._replace(data=head)


class OrderedReading(Reading):
    """Exclusive and Failover: one consumer gets all entries in order."""

    def __init__(self, path: ReadPath, *, failover: bool) -> None:
        super().__init__(path)
        self.failover = failover
        self.active: ServedConsumer | None = None
        self._ranking = Ranking()
        self._announced: dict[ServedConsumer, bool] = {}
        self._unannounced: dict[ServedConsumer, None] = {}
        """Consumers for which the last changes may be news."""

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        if not self.failover:
            raise ConsumerBusyError(f"subscription {name} has an exclusive consumer; close it first")

    def consumers_changed(self) -> None:
        before = self.active
        chosen = self._ranking.active(self.path.partition)
        self.active = chosen if isinstance(chosen, ServedConsumer) else None
        if self.active is not before:
            self._unannounced.update((one, None) for one in (before, self.active) if one is not None)
            self.rewind()

    def join(self, consumer: ServedConsumer) -> None:
        super().join(consumer)
        self._ranking.join(consumer)
        self._unannounced[consumer] = None

    def left(self, consumer: ServedConsumer) -> None:
        super().left(consumer)
        self._ranking.leave(consumer)
        self._announced.pop(consumer, None)
        consumer.forget_news()

    def announce(self) -> None:
        changed, self._unannounced = self._unannounced, {}
        for consumer in changed if self.failover else ():
            active = consumer is self.active
            if consumer in self.consumers and self._announced.get(consumer) is not active:
                consumer.notify_active(active)
                self._announced[consumer] = active

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        if consumer is self.active:
            self.rewind()

    def _entries_for(self, consumer: ServedConsumer) -> Sequence[Entry] | None:
        path, wanted = self.path, consumer.options.bucket_hashes
        entries = path.source.read(self.next, min(consumer.permits, path.batch_entries))
        if not entries or wanted is None:
            return entries
        return [_without_unwanted(entry, wanted) for entry in entries]

    def turn(self) -> bool:
        consumer = self.active
        if consumer is None or not consumer.ready:
            return False
        path = self.path
        acks = path.cursor.acks
        self.next = acks.next_pending(self.next)
        entries = self._entries_for(consumer)
        if not entries:
            return False
        plain = entries[0].ordinal >= acks.top and not acks.parts and path.kept_bits is None
        stamped = consumer.link.wants_entry_metadata
        consumer_id, epoch, partition = consumer.id, consumer.epoch, path.partition
        permits, buffers = consumer.permits, list[bytes]()
        sent = size = 0
        ack_set: tuple[int, ...] = ()
        ordinal = self.next
        for entry in entries:
            (ledger, number), ordinal, index, count, timestamp, data = entry
            messages = count
            if not plain:
                ack_set, messages = ((), 0) if ordinal in acks else self._pending_of(entry)
                if not messages:
                    continue
            elif count * MESSAGE_BYTES_MIN > len(data):
                messages = countable_messages(data)
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
