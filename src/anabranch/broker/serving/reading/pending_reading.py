"""Reading for several consumers at once: the holder of each entry.

Entries that come back, because a client asked for them or went away, are delivered before new ones.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice

from anabranch.broker.dispatch.delays import Delays
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.reading.reading import WRITE_BYTES, Reading, ReadPath
from anabranch.ledger.storage import Entry
from anabranch.protocol.hot_frames import encode_delivery

SLICE_ENTRIES = 1000
"""Entries that come back, or whose delivery time has come, which are taken in one turn."""


class _Outgoing:
    """Frames collected for several consumers during one turn."""

    __slots__ = ("buffers", "entries", "messages", "size")

    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self.entries = 0
        self.messages = 0
        self.size = 0


class PendingReading(Reading):
    """The base of Shared and Key_Shared, which both remember the consumer that holds each entry."""

    def __init__(self, path: ReadPath) -> None:
        super().__init__(path)
        self._out: dict[int, tuple[ServedConsumer, int, int]] = {}
        """By ordinal the consumer, the slot, and the messages that count as unacknowledged."""
        self._returning: dict[int, bool] = {}
        """Entries that `turn` takes back in slices before it delivers any; True if a client asked for it."""
        self._redeliveries: dict[int, int] = {}
        self._delayed = Delays()
        self._blocked = False
        self._frames: dict[ServedConsumer, _Outgoing] = {}

    @property
    def blocked(self) -> bool:
        return self._blocked

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    @property
    def replayed(self) -> int:
        return len(self._returning)

    @property
    def wake_at_ms(self) -> int | None:
        return self._delayed.next_ms

    @property
    def at_end(self) -> bool:
        return super().at_end and not self._returning

    def limit(self, of_consumer: int, of_all: int) -> None:
        super().limit(of_consumer, of_all)
        self._blocked = self.unacked >= of_all

    def rewind(self) -> None:
        super().rewind()
        for consumer in self.consumers:
            consumer.settle(consumer.unacked)
            consumer.held.clear()
        self._out.clear()
        self._returning.clear()
        self._delayed.clear()
        self.unacked = 0
        self._blocked = False

    def acknowledged(self, ordinals: Iterable[int]) -> bool:
        more = False
        for ordinal in ordinals:
            if self._redeliveries:
                self._redeliveries.pop(ordinal, None)
            held = self._out.pop(ordinal, None)
            if held is not None:
                consumer = held[0]
                del consumer.held[ordinal]
                consumer.messages_acked += held[2]
                more |= self._release(*held)
                more |= self._settled(ordinal, held[1])
        return more

    def acknowledged_part(self, ordinal: int, messages: int) -> bool:
        held = self._out.get(ordinal)
        if held is None:
            return False
        consumer, slot, before = held
        self._out[ordinal] = (consumer, slot, before - messages)
        consumer.messages_acked += messages
        return self._release(consumer, slot, messages)

    def unacked_of(self, ordinal: int) -> int:
        return self._out[ordinal][2] if ordinal in self._out else 0

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        held = consumer.held
        self._return((ordinal for ordinal in ordinals if ordinal in held), asked=True)

    def left(self, consumer: ServedConsumer) -> None:
        super().left(consumer)
        self._return(consumer.held, asked=False)

    def _return(self, ordinals: Iterable[int], *, asked: bool) -> None:
        returning = self._returning
        fresh = sorted(ordinal for ordinal in ordinals if ordinal not in returning)
        returning.update(dict.fromkeys(fresh, asked))

    def _take_some_back(self) -> bool:
        """Take back a slice of the entries that return; whether there are more."""
        back = []
        for ordinal in list(islice(self._returning, SLICE_ENTRIES)):
            asked = self._returning.pop(ordinal)
            # A consumer of the subscription may have acknowledged an entry meanwhile.
            if ordinal in self._out:
                back.append(ordinal)
                if asked:
                    consumer, _, messages = self._out[ordinal]
                    consumer.messages_redelivered += messages
                    self._redeliveries[ordinal] = self._redeliveries.get(ordinal, 0) + 1
        self._requeue(back)
        return bool(self._returning)

    def _requeue(self, ordinals: Sequence[int]) -> None:
        back = []
        for ordinal in ordinals:
            consumer, slot, messages = self._out.pop(ordinal)
            del consumer.held[ordinal]
            self._release(consumer, slot, messages)
            back.append((ordinal, slot, messages))
        self._take_back(back)

    @abstractmethod
    def _take_back(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """Deliver these entries, as (ordinal, slot, messages), again before later ones."""

    @abstractmethod
    def _due(self, ordinal: int, slot: int) -> None:
        """Take note that the delivery time of an entry has come."""

    def _settled(self, ordinal: int, slot: int) -> bool:
        """Take note that an outstanding entry is acknowledged; whether more may be delivered."""
        return False

    def _release(self, consumer: ServedConsumer, _slot: int, messages: int) -> bool:
        was_blocked = consumer.blocked or self._blocked
        consumer.settle(messages)
        self.unacked -= messages
        if self._blocked and self.unacked <= self.path.unacked_max // 2:
            self._blocked = False
        return was_blocked

    def _give(
        self, consumer: ServedConsumer, entry: Entry, slot: int, messages: int, ack_set: tuple[int, ...]
    ) -> None:
        """Add an entry to the frames of this turn; the consumer is charged already."""
        (ledger, number), ordinal, index, count, timestamp, data = entry
        outgoing = self._frames.get(consumer)
        if outgoing is None:
            outgoing = self._frames[consumer] = _Outgoing()
        stamp = (timestamp, index + count - 1) if consumer.link.wants_entry_metadata else None
        times = self._redeliveries.get(ordinal, 0) if self._redeliveries else 0
        outgoing.buffers += encode_delivery(
            consumer.id, ledger, number, self.path.partition, times, ack_set, None, stamp, data
        )
        outgoing.entries += 1
        outgoing.messages += messages
        outgoing.size += len(data)
        if outgoing.size >= WRITE_BYTES:
            # Writing now shows whether the connection takes the next entry.
            self._flush()
        self._out[ordinal] = (consumer, slot, messages)
        consumer.held[ordinal] = None
        self.unacked += messages
        if self.unacked >= self.path.unacked_max:
            self._blocked = True

    def _flush(self) -> None:
        for consumer, outgoing in self._frames.items():
            self._write(consumer, outgoing.buffers, outgoing.entries, outgoing.messages, outgoing.size)
        self._frames.clear()

    def _release_due(self) -> None:
        """Take a slice of the entries whose time has come; the timer wakes at once for the others."""
        if self._delayed:
            for _, ordinal, slot in self._delayed.pop_due(self.path.clock.wall_ms(), SLICE_ENTRIES):
                self._due(ordinal, slot)
