"""The outstanding entries of a subscription: which consumer has which entry and did not acknowledge it.

Shared and Key_Shared strategies have one of these. Entries come back when a client asks for them or goes
away; the strategy then delivers them before new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.read_path import WRITE_BYTES, OutgoingFrames, ReadPath
from anabranch.ledger.storage import Entry
from anabranch.protocol.hot_frames import encode_delivery

SLICE_ENTRIES = 1000
"""Entries that come back, or whose delivery time has come, which are taken in one turn."""


class OutstandingEntries:
    """Delivers entries, and remembers the consumer of each one until it is acknowledged or comes back."""

    def __init__(self, path: ReadPath, settled: Callable[[int, int], bool] | None = None) -> None:
        """`settled` gets ordinal and slot of an acknowledged entry; it returns whether more may go out."""
        self._path = path
        self._settled = settled
        self.by_ordinal: dict[int, tuple[ServedConsumer, int, int]] = {}
        """By ordinal the consumer, the slot, and the messages that count as unacknowledged."""
        self.returning: dict[int, bool] = {}
        """Entries that `take_back` takes in slices before any is delivered; True if a client asked for it."""
        self.messages = 0
        """Delivered messages that count against the limit of the subscription."""
        self.blocked = False
        """Whether too many messages are unacknowledged over all consumers."""
        self._redeliveries: dict[int, int] = {}
        self._frames: dict[ServedConsumer, OutgoingFrames] = {}

    def limit_changed(self) -> None:
        """Follow another `unacked_max` of the path."""
        self.blocked = self.messages >= self._path.unacked_max

    def clear(self, consumers: Iterable[ServedConsumer]) -> None:
        """Forget all entries of these consumers, because the subscription starts to read elsewhere."""
        for consumer in consumers:
            consumer.settle(consumer.unacked)
            consumer.outstanding.clear()
        self.by_ordinal.clear()
        self.returning.clear()
        self.messages = 0
        self.blocked = False

    def acknowledged(self, ordinals: Iterable[int]) -> bool:
        """Forget acknowledged entries; whether more may be delivered because of it."""
        more = False
        for ordinal in ordinals:
            if self._redeliveries:
                self._redeliveries.pop(ordinal, None)
            found = self.by_ordinal.pop(ordinal, None)
            if found is not None:
                consumer, slot, messages = found
                del consumer.outstanding[ordinal]
                consumer.messages_acked += messages
                more |= self._release(consumer, messages)
                if self._settled is not None:
                    more |= self._settled(ordinal, slot)
        return more

    def acknowledged_part(self, ordinal: int, messages: int) -> bool:
        """As `acknowledged`, for this many more messages of one entry."""
        found = self.by_ordinal.get(ordinal)
        if found is None:
            return False
        consumer, slot, before = found
        self.by_ordinal[ordinal] = (consumer, slot, before - messages)
        consumer.messages_acked += messages
        return self._release(consumer, messages)

    def messages_of(self, ordinal: int) -> int:
        """Return how many messages of an entry are unacknowledged; 0 if it is not outstanding."""
        found = self.by_ordinal.get(ordinal)
        return 0 if found is None else found[2]

    def give_back(self, ordinals: Iterable[int], *, asked: bool) -> None:
        """Let outstanding entries come back; `asked` says that their client wants them again."""
        returning = self.returning
        fresh = sorted(ordinal for ordinal in ordinals if ordinal not in returning)
        returning.update(dict.fromkeys(fresh, asked))

    def take_back(self) -> list[tuple[int, int]]:
        """Take a slice of the entries that come back, as (ordinal, slot), from their consumers."""
        back = []
        for ordinal in list(islice(self.returning, SLICE_ENTRIES)):
            asked = self.returning.pop(ordinal)
            found = self.by_ordinal.pop(ordinal, None)
            # A consumer of the subscription may have acknowledged an entry meanwhile.
            if found is not None:
                consumer, slot, messages = found
                if asked:
                    consumer.messages_redelivered += messages
                    self._redeliveries[ordinal] = self._redeliveries.get(ordinal, 0) + 1
                del consumer.outstanding[ordinal]
                self._release(consumer, messages)
                back.append((ordinal, slot))
        return back

    def _release(self, consumer: ServedConsumer, messages: int) -> bool:
        """Count messages as no longer unacknowledged; whether this may end a limit."""
        was_blocked = consumer.blocked or self.blocked
        consumer.settle(messages)
        self.messages -= messages
        if self.blocked and self.messages <= self._path.unacked_max // 2:
            self.blocked = False
        return was_blocked

    # Called for every delivery of Shared and Key_Shared. Frames are collected by consumer and written once a
    # turn, because a write costs more than an entry; 256 KiB are written at once, so that the connection can
    # say that it takes no more. The dictionary keeps the order of delivery, which `KeyedReading.redeliver`
    # relies on.
    def give(
        self, consumer: ServedConsumer, entry: Entry, slot: int, messages: int, ack_set: tuple[int, ...]
    ) -> None:
        """Add an entry to the frames of this turn; the consumer is charged already."""
        (ledger, number), ordinal, index, count, timestamp, data = entry
        outgoing = self._frames.get(consumer)
        if outgoing is None:
            outgoing = self._frames[consumer] = OutgoingFrames()
        stamp = (timestamp, index + count - 1) if consumer.link.wants_entry_metadata else None
        times = self._redeliveries.get(ordinal, 0) if self._redeliveries else 0
        outgoing.buffers += encode_delivery(
            consumer.id, ledger, number, self._path.partition, times, ack_set, None, stamp, data
        )
        outgoing.entries += 1
        outgoing.messages += messages
        outgoing.size += len(data)
        if outgoing.size >= WRITE_BYTES:
            # Writing now shows whether the connection takes the next entry.
            self.flush()
        self.by_ordinal[ordinal] = (consumer, slot, messages)
        consumer.outstanding[ordinal] = None
        self.messages += messages
        if self.messages >= self._path.unacked_max:
            self.blocked = True

    def flush(self) -> None:
        """Write the frames that were collected in this turn."""
        for consumer, outgoing in self._frames.items():
            self._path.send(consumer, outgoing)
        self._frames.clear()
