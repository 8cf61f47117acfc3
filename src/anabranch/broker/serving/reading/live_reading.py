"""How the subscriptions of a live topic choose the consumer of an entry: now, or never.

An entry goes to a consumer that has permits and whose connection takes more bytes. Otherwise it is dropped
and counted. No entry waits, and none is delivered twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from anabranch.broker.dispatch.receivers import Receiver, RoundRobin
from anabranch.broker.dispatch.selectors import AutoSplit, SplitRanges, SplitSelector, Sticky, sticky_ranges
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.reading.keyed_reading import outer_of, range_pairs
from anabranch.broker.serving.reading.ordered_reading import OrderedReading
from anabranch.broker.serving.reading.reading import WRITE_BYTES, Reading, ReadPath
from anabranch.broker.serving.reading.strategies import Kind
from anabranch.errors import ConsumerBusyError, NotAllowedError
from anabranch.ledger.storage import Entry
from anabranch.model.ranges import HashRange
from anabranch.protocol.claims import permits_for
from anabranch.protocol.hot_frames import encode_delivery
from anabranch.protocol.pb import pulsar_pb2 as pb


@dataclass(slots=True)
class _Parcel:
    """The deliveries of one turn for one consumer."""

    buffers: list[bytes] = field(default_factory=list)
    entries: int = 0
    messages: int = 0
    size_bytes: int = 0


class LiveReading(Reading):
    """Hands entries out as they pass; it has no position and takes nothing back."""

    @abstractmethod
    def receiver_of(self, entry: Entry) -> Receiver | None:
        """The consumer that the entry is for, whether or not it has room; None without consumers."""

    def turn(self) -> bool:
        return False

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        """Nothing to deliver again, because the broker does not keep entries of a live topic."""

    def pass_on(self, entries: Sequence[Entry], ledger: int) -> None:
        """Deliver each entry to its consumer, or count it as dropped."""
        parcels: dict[ServedConsumer, _Parcel] = {}
        for entry in entries:
            consumer = self.receiver_of(entry)
            if not isinstance(consumer, ServedConsumer) or not consumer.ready:
                self.path.counters.messages_dropped += entry.count
                continue
            parcel = parcels.setdefault(consumer, _Parcel())
            self._pack(parcel, consumer, entry, ledger)
            if parcel.size_bytes >= WRITE_BYTES:
                # Ask the connection again whether it takes more bytes before the next entry.
                self._hand_over(consumer, parcels.pop(consumer))
        for consumer, parcel in parcels.items():
            self._hand_over(consumer, parcel)

    def drop(self, entries: Sequence[Entry]) -> None:
        """Deliver none of these entries."""
        self.path.counters.messages_dropped += sum(entry.count for entry in entries)

    def _pack(self, parcel: _Parcel, consumer: ServedConsumer, entry: Entry, ledger: int) -> None:
        _, number, index, count, timestamp, data = entry
        stamp = (timestamp, index + count - 1) if consumer.link.wants_entry_metadata else None
        # Go's client takes a second message of one id for a repetition, so each entry has its own id.
        parcel.buffers += encode_delivery(
            consumer.id, ledger, number, self.path.partition, 0, (), consumer.epoch, stamp, data
        )
        messages = permits_for(count, data)
        consumer.permits -= messages
        parcel.entries += 1
        parcel.messages += messages
        parcel.size_bytes += len(data)

    def _hand_over(self, consumer: ServedConsumer, parcel: _Parcel) -> None:
        self._write(consumer, parcel.buffers, parcel.entries, parcel.messages, parcel.size_bytes)


class LiveOrdered(LiveReading, OrderedReading):
    """Exclusive and Failover: the active consumer gets all entries."""

    def receiver_of(self, entry: Entry) -> Receiver | None:
        return self.active


class LiveShared(LiveReading):
    """Shared: entries go round the consumers that have room."""

    def __init__(self, path: ReadPath) -> None:
        super().__init__(path)
        self._turns = RoundRobin()

    def consumers_changed(self) -> None:
        self._turns.change(self.consumers)

    def receiver_of(self, entry: Entry) -> Receiver | None:
        return self._turns.next()


class LiveKeyed(LiveReading):
    """Key_Shared: the consumer of the key's hash gets the entry, and no other one does."""

    def __init__(self, path: ReadPath, *, sticky: bool) -> None:
        super().__init__(path)
        self._sticky = Sticky() if sticky else None
        self._split: SplitSelector = SplitRanges() if path.keyed.by_ranges else AutoSplit()

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        if (meta.keySharedMode == pb.STICKY) != (self._sticky is not None):
            raise ConsumerBusyError(f"subscription {name} is in use with another Key_Shared mode")

    def ranges_for(self, meta: pb.KeySharedMeta) -> tuple[HashRange, ...]:
        return () if self._sticky is None else sticky_ranges(range_pairs(meta), self._sticky.is_free)

    @property
    def key_shared_mode(self) -> str | None:
        return "AUTO_SPLIT" if self._sticky is None else "STICKY"

    def consumers_changed(self) -> None:
        """Nothing to do: `join` and `left` have changed the owners of hashes."""

    def join(self, consumer: ServedConsumer) -> None:
        if self._sticky is not None:
            self._sticky.put(consumer, consumer.ranges)
        else:
            self._split.join(consumer)
        super().join(consumer)

    def left(self, consumer: ServedConsumer) -> None:
        super().left(consumer)
        if self._sticky is not None:
            self._sticky.put(None, consumer.ranges)
        else:
            self._split.leave(consumer)

    def receiver_of(self, entry: Entry) -> Receiver | None:
        owners = self._split if self._sticky is None else self._sticky
        return owners.owner(outer_of(entry).sticky_hash)


def make_live_reading(path: ReadPath, kind: Kind, meta: pb.KeySharedMeta, before: Reading) -> LiveReading:
    """The strategy for the first consumer of a subscription; the one `before` has nothing to keep."""
    if kind == pb.CommandSubscribe.Shared:
        return LiveShared(path)
    if kind != pb.CommandSubscribe.Key_Shared:
        return LiveOrdered(path, failover=kind == pb.CommandSubscribe.Failover)
    if meta.entryBucketDispatch:
        raise NotAllowedError("only segments of scalable topics are shared by buckets")
    return LiveKeyed(path, sticky=meta.keySharedMode == pb.STICKY)
