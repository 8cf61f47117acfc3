"""The cursor, the log and the limits that every strategy of one subscription reads with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.broker.dispatch.keyed_strategies import ByLanes, KeyedStrategy
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.counters import Counters
from anabranch.broker.serving.delivery.log_reader import LogReader
from anabranch.clock import Clock
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.storage import Entry
from anabranch.model.acks import words_from_bits
from anabranch.protocol.claims import permits_for

WRITE_BYTES = 256 * 2**10
"""Bytes written to a consumer before its connection is asked again whether it takes more."""


class OutgoingFrames:
    """Frames collected for one consumer during a turn."""

    __slots__ = ("buffers", "entries", "messages", "size")

    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self.entries = 0
        self.messages = 0
        self.size = 0


@dataclass(slots=True)
class ReadPath:
    """Shared by a strategy and its parts; the next strategy of the subscription takes it over."""

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
    next: int = 0
    """First ordinal not read yet."""

    def pending_of(self, entry: Entry) -> tuple[tuple[int, ...], int]:
        """Return the ack set of a partly acknowledged entry, and how many of its messages are pending."""
        left = self.cursor.acks.remaining(entry.ordinal)
        kept = None if self.kept_bits is None else self.kept_bits(entry)
        if kept is not None:
            left = kept if left is None else left & kept
        if left is None:
            return (), permits_for(entry.count, entry.data)
        return tuple(words_from_bits(left)), left.bit_count()

    def write(
        self, consumer: ServedConsumer, buffers: list[bytes], entries: int, messages: int, size: int
    ) -> None:
        """Write frames with this many entries, messages and payload bytes to a consumer, and count them."""
        consumer.link.deliver(buffers)
        consumer.entries_out += entries
        consumer.messages_out += messages
        consumer.bytes_out += size
        consumer.last_sent_ms = self.clock.wall_ms()
        counters = self.counters
        counters.messages_out += messages
        counters.bytes_out += size

    def send(self, consumer: ServedConsumer, outgoing: OutgoingFrames) -> None:
        """Write the frames that were collected for a consumer."""
        self.write(consumer, outgoing.buffers, outgoing.entries, outgoing.messages, outgoing.size)
