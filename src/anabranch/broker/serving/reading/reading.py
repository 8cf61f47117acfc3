"""How a subscription reads its log: the parts that all strategies share.

A strategy owns the read position and the entries that are delivered and not acknowledged. A turn delivers one
batch and never waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from anabranch.broker.dispatch.keyed_strategies import ByLanes, KeyedStrategy
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.counters import Counters
from anabranch.broker.serving.delivery.log_reader import LogReader
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.clock import Clock
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import Entry
from anabranch.model.acks import words_from_bits
from anabranch.model.ranges import HashRange
from anabranch.protocol.claims import permits_for
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
    ordered_delays: bool = False
    """Whether an ordered strategy waits for the delivery times of entries."""
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

    def ranges_for(self, meta: pb.KeySharedMeta) -> tuple[HashRange, ...]:
        """The hash ranges of a new consumer; none, unless consumers share by hash."""
        return ()

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
        self.path.counters.consumers_seen += 1

    def left(self, consumer: ServedConsumer) -> None:
        """Forget a consumer that is gone, and take its entries back; `consumers_changed` follows."""
        del self.consumers[consumer]
        self.path.counters.consumer_left(consumer)

    def acknowledged(self, ordinals: Iterable[int]) -> bool:
        """Take note of whole entries acknowledged; whether more may be delivered because of it."""
        return False

    def acknowledged_part(self, ordinal: int, messages: int) -> bool:
        """As `acknowledged`, for this many more messages of one entry."""
        return False

    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> bool:
        """Acknowledge messages inside an entry, as its cursor does; whether more may be delivered."""
        cursor = self.path.cursor
        before = cursor.acks.remaining(ordinal)
        pending = count if before is None else before.bit_count()
        cursor.acknowledge_part(ordinal, remaining, count)
        if ordinal in cursor.acks:
            return self.acknowledged((ordinal,))
        left = cursor.acks.remaining(ordinal)
        return self.acknowledged_part(ordinal, 0 if left is None else pending - left.bit_count())

    def unacked_of(self, ordinal: int) -> int:
        """Messages of a delivered entry that are not acknowledged; 0 if that is not known."""
        return 0

    def limit(self, of_consumer: int, of_all: int) -> None:
        """Follow other limits of unacknowledged messages: of each consumer, and of all together."""
        self.path.unacked_max = of_all
        for consumer in self.consumers:
            consumer.limit(of_consumer)

    def rewind(self) -> None:
        """Start again at the first entry that is not acknowledged."""
        self.next = self.path.cursor.acks.mark
        self.path.counters.mark_set(self.next)
        self.path.source.forget()

    @property
    def active(self) -> ServedConsumer | None:
        """The only consumer that gets entries; None if several do."""
        return None

    @property
    def blocked(self) -> bool:
        """Whether too many messages are unacknowledged over all consumers."""
        return False

    @property
    def delayed(self) -> int:
        """Entries that wait for their delivery time, as far as they are known."""
        return 0

    @property
    def replayed(self) -> int:
        """Entries that were read before and wait for their delivery."""
        return 0

    @property
    def key_shared_mode(self) -> str | None:
        """How Pulsar calls the way in which consumers share keys; None unless they do."""
        return None

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
        consumer.link.deliver(buffers)
        consumer.entries_out += entries
        consumer.messages_out += messages
        consumer.bytes_out += size
        consumer.last_sent_ms = self.path.clock.wall_ms()
        counters = self.path.counters
        counters.messages_out += messages
        counters.bytes_out += size
