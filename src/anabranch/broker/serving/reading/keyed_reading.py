"""Reading for Key_Shared: one consumer at a time reads a key, or a bucket, and in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from anabranch.broker.dispatch.drains import slots_of
from anabranch.broker.dispatch.lanes import LaneReason
from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.selectors import (
    AutoSplit,
    Buckets,
    SplitRanges,
    SplitSelector,
    Sticky,
    bucket_boundaries,
    sticky_ranges,
)
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.retries import AT_ONCE, Retry
from anabranch.broker.serving.lanes.lane_reading import LaneReading
from anabranch.broker.serving.lanes.relieving import Relieving
from anabranch.broker.serving.reading.reading import ReadPath
from anabranch.errors import ConsumerAssignError, ConsumerBusyError, RemoteProtocolError
from anabranch.ledger.storage import Entry
from anabranch.model.drains import Ranges, covers
from anabranch.model.hashing import bucket_index, bucket_ranges
from anabranch.model.ranges import HashRange
from anabranch.protocol.outer import Outer, read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb

DELAYED_KEY = "anabranch.delayed"
"""Subscribe metadata: later entries of a key `wait` for a delayed one, or `pass` it."""


class KeyedReading(LaneReading):
    """Key_Shared: entries of a key, or of a bucket, go to one consumer at a time and in order."""

    def __init__(
        self, path: ReadPath, *, sticky: bool = False, boundaries: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(path, boundaries)
        self._sticky = Sticky() if sticky else None
        self.open: Ranges | None = None
        """The bucket hashes that may be delivered, None for all; takes effect with `consumers_changed`."""
        self._closed: frozenset[int] = frozenset()
        self._buckets: Buckets | None = None
        self._readers: Collection[Receiver] = self.consumers
        """The consumers that fresh entries may be for."""
        self._split: SplitSelector = SplitRanges() if path.keyed.by_ranges else AutoSplit()
        self._relieving = Relieving(path, self.dispatch)

    def join(self, consumer: ServedConsumer) -> None:
        if self._sticky is not None:
            self._sticky.put(consumer, consumer.ranges)
        elif self.boundaries is None:
            self._split.join(consumer)
        super().join(consumer)

    def left(self, consumer: ServedConsumer) -> None:
        super().left(consumer)
        if self._sticky is not None:
            self._sticky.put(None, consumer.ranges)
        elif self.boundaries is None:
            self._split.leave(consumer)

    def consumers_changed(self) -> None:
        if self.consumers:
            chosen = (consumer.options.metadata.get(DELAYED_KEY) for consumer in self.consumers)
            self.delayed_pass = all(choice == "pass" for choice in chosen)
        else:
            self.remember()
        if self.boundaries is not None:
            self._closed = self._closed_buckets(self.boundaries)
            reading = [consumer for consumer in self.consumers if not consumer.retired]
            buckets = Buckets(len(self.boundaries) + 1, reading, self._closed)
            if self._buckets is not None:
                self.path.counters.bucket_moves += buckets.moved_from(self._buckets)
            self._buckets, self._readers = buckets, buckets.readers
            self.dispatch.change(self._relieving.over(buckets), self._closed)
        elif self._sticky is not None:
            self.dispatch.change(self._sticky)
        else:
            self.dispatch.change(self._relieving.over(self._split))

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        if meta.entryBucketDispatch != (self.boundaries is not None):
            raise ConsumerBusyError(f"subscription {name} is in use with another kind of dispatch")
        if self.boundaries is not None:
            if bucket_boundaries(range_pairs(meta)) != self.boundaries:
                raise ConsumerAssignError(f"subscription {name} is in use with other buckets")
        elif (meta.keySharedMode == pb.STICKY) != (self._sticky is not None):
            raise ConsumerBusyError(f"subscription {name} is in use with another Key_Shared mode")

    def is_like(self, meta: pb.KeySharedMeta) -> bool:
        """Whether a new first consumer shares by the same rules, so that the lanes stay as they are."""
        try:
            self.check_fits("", meta)
        except (ConsumerBusyError, ConsumerAssignError):
            return False
        return True

    def ranges_for(self, meta: pb.KeySharedMeta) -> tuple[HashRange, ...]:
        """The hash ranges of a new consumer, beside those that the connected consumers have taken."""
        if self.boundaries is not None:
            return tuple(HashRange(start, end) for start, end in range_pairs(meta))
        return () if self._sticky is None else sticky_ranges(range_pairs(meta), self._sticky.is_free)

    def _closed_buckets(self, boundaries: tuple[int, ...]) -> frozenset[int]:
        if self.open is None:
            return frozenset()
        buckets = enumerate(bucket_ranges(boundaries))
        return frozenset(at for at, bucket in buckets if not covers(self.open, bucket))

    def redeliver(self, consumer: ServedConsumer, ordinals: Iterable[int], retry: Retry = AT_ONCE) -> None:
        """Deliver these entries of a consumer again, each with the later ones of its slot that it holds."""
        out, held = self._out, consumer.held
        named = {ordinal for ordinal in ordinals if ordinal in held}
        firsts: dict[int, int] = {}
        for ordinal in sorted(named):
            firsts.setdefault(out[ordinal][1], ordinal)
        later: list[int] = []
        if len(named) < len(held):
            # The later entries of a slot went out after the earlier ones.
            unseen = len(named)
            for ordinal in reversed(held):
                if not unseen:
                    break
                if ordinal in named:
                    unseen -= 1
                elif firsts.get(out[ordinal][1], ordinal) < ordinal:
                    later.append(ordinal)
        self._return(named, asked=True)
        self._return(later, asked=False)
        for slot in firsts:
            self._wait_before(slot, retry)

    def _wait_before(self, slot: int, retry: Retry) -> None:
        hold = self.dispatch.holds.get(slot)
        until_ms = self.path.clock.wall_ms() + retry.pause_ms if retry.pause_ms else 0
        if retry.park is not None:
            self.park_slot(slot, retry.park)
        elif until_ms and (hold is None or hold.reason is LaneReason.DELAYED or 0 < hold.until_ms < until_ms):
            self.pause_slot(slot, until_ms)

    @property
    def key_shared_mode(self) -> str | None:
        return "AUTO_SPLIT" if self._sticky is None else "STICKY"

    @property
    def explained(self) -> Sequence[str]:
        return self._relieving.explained

    @property
    def wake_at_ms(self) -> int | None:
        times = super().wake_at_ms, self._relieving.wake_ms(self._readers)
        return min((time for time in times if time is not None), default=None)

    def turn(self) -> bool:
        self._begin_turn()
        self._release_due()
        if self._returning and self._take_some_back():
            return True
        more = self._lane_turn()
        if any(reader.ready for reader in self._readers):
            if self._keeper.scanning:
                more |= self._keeper.scan_turn(self._hold_found)
            more |= self._fresh_turn()
        more |= self._relieving.turn(self._readers, self._now_ms)
        self._flush()
        self._keeper.turn(self.next, self._outstanding_slots())
        return more

    def _hold_found(self, entry: Entry) -> None:
        """Hold an entry below the floor of the last note in its lane."""
        outer = outer_of(entry)
        slot = self._slot_of(outer)
        if outer.deliver_at_ms > self._now_ms:
            self._delay(entry.ordinal, slot, outer.deliver_at_ms, len(entry.data))
        else:
            self.dispatch.hold(entry.ordinal, slot, size=len(entry.data), now_ms=self._now_ms)
            self._aside.keep(entry)

    def _slot_of(self, outer: Outer) -> int:
        boundaries = self.boundaries
        return outer.sticky_hash if boundaries is None else bucket_index(boundaries, outer.bucket_hash)

    def _fresh_turn(self) -> bool:
        path, dispatch = self.path, self.dispatch
        acks = path.cursor.acks
        self.next = acks.next_pending(self.next)
        room = self._room()
        if room <= 0 or self._blocked:
            return False
        entries = path.source.read(self.next, room)
        if not entries:
            return False
        now_ms = self._now_ms
        for entry in entries:
            ordinal = entry.ordinal
            self.next = ordinal + 1
            if ordinal in acks:
                continue
            if self._closed and slots_of(entry.data) is None:
                # A key of this batch may belong to a closed bucket, so no later entry may overtake it.
                self.next = ordinal
                return False
            outer = outer_of(entry)
            slot = self._slot_of(outer)
            if outer.deliver_at_ms > now_ms:
                self._delay(ordinal, slot, outer.deliver_at_ms, len(entry.data))
                continue
            ack_set, messages = self._pending_of(entry)
            receiver = dispatch.offer(ordinal, slot, messages, size=len(entry.data), now_ms=now_ms)
            if isinstance(receiver, ServedConsumer):
                self._give(receiver, entry, slot, messages, ack_set)
                if self._blocked:
                    return False
            else:
                self._aside.keep(entry)
        return self.next < path.source.end


def range_pairs(meta: pb.KeySharedMeta) -> list[tuple[int, int]]:
    """The hash ranges that a Key_Shared consumer sends."""
    return [(part.start, part.end) for part in meta.hashRanges]


def outer_of(entry: Entry) -> Outer:
    """The outer metadata of an entry; of one that cannot be read, that of an entry without a key."""
    try:
        return read_outer(entry.data)
    except RemoteProtocolError:
        # The broker stores entries unread. The consumer of this one refuses and acknowledges it.
        return Outer("", 0, 0, entry.count, False, 1, 1, 1, False, 0, 0)
