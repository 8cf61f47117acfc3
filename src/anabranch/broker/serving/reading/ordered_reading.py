"""The ordered strategy of a subscription, for Exclusive and Failover: one consumer gets all entries in order.

It keeps no state per entry: after a redelivery it goes back to the first pending one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.read_path import WRITE_BYTES, ReadPath
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.reading.reading import Reading
from anabranch.broker.serving.reading.sharing import OneActive
from anabranch.ledger.storage import Entry
from anabranch.model.ranges import HashRange
from anabranch.protocol.claims import MESSAGE_BYTES_MIN, countable_messages
from anabranch.protocol.hot_frames import encode_delivery
from anabranch.protocol.outer import deliver_at_ms, head_without, read_outer


def _without_unwanted(entry: Entry, wanted: HashRange) -> Entry:
    """Return the entry, without its payload if no message in it has a wanted bucket hash.

    The reader counts by the claim of such an entry, so one that was stored with another count stays whole.
    """
    head = head_without(entry.data, wanted)
    if head is None or read_outer(head).num_messages != entry.count:
        return entry
    return entry._replace(data=head)


class OrderedReading(Reading):
    """Exclusive and Failover: one consumer gets all entries in order."""

    def __init__(self, path: ReadPath, *, failover: bool) -> None:
        super().__init__(path, OneActive(path.partition, failover=failover))
        self._delayed_until_ms: int | None = None

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        if consumer is self.sharing.active:
            places = self.path.source.log.extent
            sent = places.index_of(self.path.next) - places.index_of(self.path.cursor.acks.mark)
            consumer.messages_redelivered += max(sent, 0)
            self.rewind()

    def _entries_for(self, consumer: ServedConsumer) -> Sequence[Entry] | None:
        path, wanted = self.path, consumer.options.bucket_hashes
        entries = path.source.read(path.next, min(consumer.permits, path.batch_entries))
        if entries and path.ordered_delays:
            entries = self._due(entries)
        if not entries or wanted is None:
            return entries
        return [_without_unwanted(entry, wanted) for entry in entries]

    def _due(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries before the first one whose delivery time has not come."""
        now_ms = self.path.clock.wall_ms()
        for at, entry in enumerate(entries):
            if (due_ms := deliver_at_ms(entry.data)) > now_ms:
                self._delayed_until_ms = due_ms
                return entries[:at]
        return entries

    @property
    def wake_at_ms(self) -> int | None:
        return self._delayed_until_ms

    # The path of every Exclusive and Failover delivery. It keeps nothing for an entry, so a subscription with
    # a million entries under way costs as much as one with none: acknowledgements are in the cursor, and a
    # redelivery goes back to the first pending entry.
    #
    # One turn reads one batch and writes all frames at once. `plain` is decided once for the batch: no entry
    # from here on is acknowledged, in part or whole, and none is compacted, so the loop asks the cursor
    # nothing. An older broker may have stored an entry with a count that consumers do not find in it; its
    # permits follow the rule that both ends share (`protocol/claims.py`), or both would count differently
    # from then on. The loop stops at 256 KiB, because only a write shows whether the connection takes more.
    def turn(self) -> bool:
        consumer, self._delayed_until_ms = self.sharing.active, None
        if consumer is None or not consumer.ready:
            return False
        path = self.path
        acks = path.cursor.acks
        path.next = acks.next_pending(path.next)
        entries = self._entries_for(consumer)
        if not entries:
            return False
        plain = entries[0].ordinal >= acks.top and not acks.parts and path.kept_bits is None
        stamped = consumer.link.wants_entry_metadata
        consumer_id, epoch, partition = consumer.id, consumer.epoch, path.partition
        permits, buffers = consumer.permits, list[bytes]()
        sent = size = 0
        ack_set: tuple[int, ...] = ()
        ordinal = path.next
        for entry in entries:
            (ledger, number), ordinal, index, count, timestamp, data = entry
            messages = count
            if not plain:
                ack_set, messages = ((), 0) if ordinal in acks else path.pending_of(entry)
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
        path.next = ordinal + 1
        if sent:
            messages = consumer.permits - permits
            consumer.permits = permits
            path.write(consumer, buffers, sent, messages, size)
        return permits > 0 and path.next < path.source.end and self._delayed_until_ms is None
