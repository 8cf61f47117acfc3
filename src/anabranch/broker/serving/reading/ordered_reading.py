"""The ordered strategy of a subscription, for Exclusive and Failover: one consumer gets all entries in order.

It keeps no state per entry: after a redelivery it goes back to the first pending one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anabranch.broker.dispatch.receivers import Ranking
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.reading.reading import WRITE_BYTES, Reading, ReadPath
from anabranch.errors import ConsumerBusyError
from anabranch.ledger.storage import Entry
from anabranch.model.ranges import HashRange
from anabranch.protocol.claims import MESSAGE_BYTES_MIN, countable_messages
from anabranch.protocol.hot_frames import encode_delivery
from anabranch.protocol.outer import deliver_at_ms, head_without, read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb


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
        self._active: ServedConsumer | None = None
        self._ranking = Ranking()
        self._held_until_ms: int | None = None
        self._announced: dict[ServedConsumer, bool] = {}
        self._unannounced: dict[ServedConsumer, None] = {}
        """Consumers for which the last changes may be news."""

    @property
    def active(self) -> ServedConsumer | None:
        return self._active

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        if not self.failover:
            raise ConsumerBusyError(f"subscription {name} has an exclusive consumer; close it first")

    def consumers_changed(self) -> None:
        before = self._active
        chosen = self._ranking.active(self.path.partition)
        self._active = chosen if isinstance(chosen, ServedConsumer) else None
        if self._active is not before:
            self._unannounced.update((one, None) for one in (before, self._active) if one is not None)
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
            active = consumer is self._active
            if consumer in self.consumers and self._announced.get(consumer) is not active:
                consumer.notify_active(active)
                self._announced[consumer] = active

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        if consumer is self._active:
            places = self.path.source.log.extent
            sent = places.index_of(self.next) - places.index_of(self.path.cursor.acks.mark)
            consumer.messages_redelivered += max(sent, 0)
            self.rewind()

    def _entries_for(self, consumer: ServedConsumer) -> Sequence[Entry] | None:
        path, wanted = self.path, consumer.options.bucket_hashes
        entries = path.source.read(self.next, min(consumer.permits, path.batch_entries))
        if entries and path.ordered_delays:
            entries = self._due(entries)
        if not entries or wanted is None:
            return entries
        return [_without_unwanted(entry, wanted) for entry in entries]

    def _due(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """The entries before the first one whose delivery time has not come."""
        now_ms = self.path.clock.wall_ms()
        for at, entry in enumerate(entries):
            if (due_ms := deliver_at_ms(entry.data)) > now_ms:
                self._held_until_ms = due_ms
                return entries[:at]
        return entries

    @property
    def wake_at_ms(self) -> int | None:
        return self._held_until_ms

    def turn(self) -> bool:
        consumer, self._held_until_ms = self._active, None
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
        return permits > 0 and self.next < path.source.end and self._held_until_ms is None
