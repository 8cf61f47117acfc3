"""How the consumers of a subscription share its entries: which may join, and which owns an entry.

Every strategy has one `Sharing`; a live topic's strategy needs nothing else to find the receiver of an entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

from anabranch.broker.dispatch.receivers import Ranking, Receiver, RoundRobin
from anabranch.broker.dispatch.selectors import (
    AutoSplit,
    Buckets,
    SlotOwners,
    SplitRanges,
    SplitSelector,
    Sticky,
    bucket_boundaries,
    sticky_ranges,
)
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.lanes.subscription_lanes import outer_of
from anabranch.errors import ConsumerAssignError, ConsumerBusyError
from anabranch.ledger.storage import Entry
from anabranch.model.drains import Ranges, covers
from anabranch.model.hashing import bucket_ranges
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb


class Sharing(ABC):
    """The rules of one subscription type; by default any number of consumers may join."""

    active: ServedConsumer | None = None
    """The only consumer that gets entries; None if several do."""
    key_shared_mode: str | None = None
    """How Pulsar calls the way in which consumers share keys; None unless they do."""

    @abstractmethod
    def receiver_of(self, entry: Entry) -> Receiver | None:
        """Return the consumer that an entry is for, whether or not it has room; None without consumers."""

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        """Raise unless one more consumer may read as the connected consumers of subscription `name` do."""
        return

    def ranges_for(self, meta: pb.KeySharedMeta) -> tuple[HashRange, ...]:
        """Return the hash ranges of a new consumer; none, unless consumers share by hash."""
        return ()

    def join(self, consumer: ServedConsumer) -> None:
        """Take a new consumer; `changed` follows."""
        return

    def leave(self, consumer: ServedConsumer) -> None:
        """Forget a consumer that is gone; `changed` follows."""
        return

    def changed(self, consumers: Collection[ServedConsumer]) -> bool:
        """Follow a change of the consumers; whether another one is active now."""
        return False

    def announce(self) -> None:
        """Notify consumers of the effect that the last change has on them."""
        return


class OneActive(Sharing):
    """Exclusive and Failover: one consumer gets all entries."""

    def __init__(self, partition: int, *, failover: bool) -> None:
        self._partition = partition
        self._failover = failover
        self._ranking = Ranking()
        self._announced: dict[ServedConsumer, bool | None] = {}
        """By connected consumer the last news that it got; None before the first one."""
        self._unannounced: dict[ServedConsumer, None] = {}
        """Consumers for which the last changes may be news."""

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        if not self._failover:
            raise ConsumerBusyError(f"subscription {name} has an exclusive consumer; close it first")

    def join(self, consumer: ServedConsumer) -> None:
        self._ranking.join(consumer)
        self._announced[consumer] = None
        self._unannounced[consumer] = None

    def leave(self, consumer: ServedConsumer) -> None:
        self._ranking.leave(consumer)
        self._announced.pop(consumer, None)
        consumer.forget_news()

    def changed(self, consumers: Collection[ServedConsumer]) -> bool:
        before = self.active
        chosen = self._ranking.active(self._partition)
        self.active = chosen if isinstance(chosen, ServedConsumer) else None
        if self.active is before:
            return False
        self._unannounced.update((one, None) for one in (before, self.active) if one is not None)
        return True

    def announce(self) -> None:
        changed, self._unannounced = self._unannounced, {}
        for consumer in changed if self._failover else ():
            active = consumer is self.active
            if consumer in self._announced and self._announced[consumer] is not active:
                consumer.notify_active(active)
                self._announced[consumer] = active

    def receiver_of(self, entry: Entry) -> Receiver | None:
        return self.active


class RoundRobinSharing(Sharing):
    """Shared: entries go round the consumers that have room."""

    def __init__(self) -> None:
        self.turns = RoundRobin()

    def changed(self, consumers: Collection[ServedConsumer]) -> bool:
        self.turns.change(consumers)
        return False

    def receiver_of(self, entry: Entry) -> Receiver | None:
        return self.turns.next()


class ByKey(Sharing):
    """Key_Shared: each consumer owns hashes of keys, AUTO_SPLIT by a rule or STICKY as it asked."""

    def __init__(self, *, sticky: bool, by_ranges: bool) -> None:
        self._sticky = Sticky() if sticky else None
        self._split: SplitSelector = SplitRanges() if by_ranges else AutoSplit()
        self.key_shared_mode = "STICKY" if sticky else "AUTO_SPLIT"

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        if meta.entryBucketDispatch:
            raise ConsumerBusyError(f"subscription {name} is in use with another kind of dispatch")
        if (meta.keySharedMode == pb.STICKY) != (self._sticky is not None):
            raise ConsumerBusyError(f"subscription {name} is in use with another Key_Shared mode")

    def ranges_for(self, meta: pb.KeySharedMeta) -> tuple[HashRange, ...]:
        """Return the hash ranges that the consumer asks for; those of connected consumers are taken."""
        return () if self._sticky is None else sticky_ranges(range_pairs(meta), self._sticky.is_free)

    def join(self, consumer: ServedConsumer) -> None:
        if self._sticky is not None:
            self._sticky.put(consumer, consumer.ranges)
        else:
            self._split.join(consumer)

    def leave(self, consumer: ServedConsumer) -> None:
        if self._sticky is not None:
            self._sticky.put(None, consumer.ranges)
        else:
            self._split.leave(consumer)

    def receiver_of(self, entry: Entry) -> Receiver | None:
        owners = self._split if self._sticky is None else self._sticky
        return owners.owner(outer_of(entry).sticky_hash)

    def owners(self, consumers: Collection[ServedConsumer], opened: Ranges | None) -> SlotOwners:
        """Return the owners of all slots; `opened` counts for buckets only."""
        if self._sticky is not None:
            return SlotOwners(self._sticky, consumers, movable=False)
        return SlotOwners(self._split, consumers)


class ByBucket(Sharing):
    """Key_Shared on a segment: each consumer owns whole buckets, as far as they are open."""

    key_shared_mode = "AUTO_SPLIT"

    def __init__(self, boundaries: tuple[int, ...]) -> None:
        self._boundaries = boundaries
        self._buckets: Buckets | None = None

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        if not meta.entryBucketDispatch:
            raise ConsumerBusyError(f"subscription {name} is in use with another kind of dispatch")
        if bucket_boundaries(range_pairs(meta)) != self._boundaries:
            raise ConsumerAssignError(f"subscription {name} is in use with other buckets")

    def ranges_for(self, meta: pb.KeySharedMeta) -> tuple[HashRange, ...]:
        return tuple(HashRange(start, end) for start, end in range_pairs(meta))

    def receiver_of(self, entry: Entry) -> Receiver | None:
        """Live topics have no buckets."""
        return None

    def owners(self, consumers: Iterable[ServedConsumer], opened: Ranges | None) -> SlotOwners:
        """Share the buckets equally again; those outside `opened` stay closed, None opens all."""
        closed = self._closed(opened)
        reading = [consumer for consumer in consumers if not consumer.retired]
        before, self._buckets = self._buckets, Buckets(len(self._boundaries) + 1, reading, closed)
        moves = 0 if before is None else self._buckets.moved_from(before)
        return SlotOwners(self._buckets, self._buckets.readers, closed, moves)

    def _closed(self, opened: Ranges | None) -> frozenset[int]:
        if opened is None:
            return frozenset()
        buckets = enumerate(bucket_ranges(self._boundaries))
        return frozenset(at for at, bucket in buckets if not covers(opened, bucket))


def range_pairs(meta: pb.KeySharedMeta) -> list[tuple[int, int]]:
    """Return the hash ranges that a Key_Shared consumer sends."""
    return [(part.start, part.end) for part in meta.hashRanges]
