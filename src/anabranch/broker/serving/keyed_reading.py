"""Reading for Key_Shared: one consumer at a time reads a key, or a bucket, and in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest

from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.lanes import LaneReason, LaneView
from anabranch.broker.dispatch.selectors import AutoSplit, Buckets, Sticky, bucket_boundaries, sticky_ranges
from anabranch.broker.dispatch.slot_holds import Hold
from anabranch.broker.serving.consumer import ServedConsumer
from anabranch.broker.serving.draining import slots_of
from anabranch.broker.serving.reading import ReadPath
from anabranch.broker.serving.retries import AT_ONCE, Retry
from anabranch.broker.serving.shared_reading import PendingReading
from anabranch.errors import ConsumerAssignError, ConsumerBusyError, RemoteProtocolError
from anabranch.ledger.storage import Entry
from anabranch.model.drains import Ranges, covers
from anabranch.model.hashing import bucket_index, bucket_ranges
from anabranch.model.ranges import HashRange
from anabranch.protocol.outer import Outer, read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb

LANES_SHOWN = 1000
"""Most lanes that a view lists."""


class KeyedReading(PendingReading):
    """Key_Shared: entries of a key, or of a bucket, go to one consumer at a time and in order."""

    def __init__(
        self, path: ReadPath, *, sticky: bool = False, boundaries: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(path)
        self._sticky = Sticky() if sticky else None
        self.boundaries = boundaries
        """Split points of the buckets when whole buckets are dispatched, None for single keys."""
        self.open: Ranges | None = None
        """The bucket hashes that may be delivered, None for all; takes effect with `consumers_changed`."""
        self._closed: frozenset[int] = frozenset()
        self.dispatch = KeyedDispatch()
        self._buckets: Buckets | None = None
        self._ring = AutoSplit()

    @property
    def at_end(self) -> bool:
        return super().at_end and not self.dispatch.held

    def rewind(self) -> None:
        super().rewind()
        self.dispatch.clear()

    def join(self, consumer: ServedConsumer) -> None:
        super().join(consumer)
        if self._sticky is not None:
            self._sticky.put(consumer, consumer.ranges)
        elif self.boundaries is None:
            self._ring.join(consumer)

    def left(self, consumer: ServedConsumer) -> None:
        super().left(consumer)
        if self._sticky is not None:
            self._sticky.put(None, consumer.ranges)
        elif self.boundaries is None:
            self._ring.leave(consumer)

    def consumers_changed(self) -> None:
        if not self.consumers:
            self.rewind()
        if self.boundaries is not None:
            self._closed = self._closed_buckets(self.boundaries)
            reading = [consumer for consumer in self.consumers if not consumer.retired]
            buckets = Buckets(len(self.boundaries) + 1, reading, self._closed)
            if self._buckets is not None:
                self.path.counters.bucket_moves += buckets.moved_from(self._buckets)
            self._buckets = buckets
            self.dispatch.change(buckets)
        elif self._sticky is not None:
            self.dispatch.change(self._sticky)
        else:
            self.dispatch.change(self._ring)

    def check_fits(self, name: str, meta: pb.KeySharedMeta) -> None:
        if meta.entryBucketDispatch != (self.boundaries is not None):
            raise ConsumerBusyError(f"subscription {name} is in use with another kind of dispatch")
        if self.boundaries is not None:
            if bucket_boundaries(range_pairs(meta)) != self.boundaries:
                raise ConsumerAssignError(f"subscription {name} is in use with other buckets")
        elif (meta.keySharedMode == pb.STICKY) != (self._sticky is not None):
            raise ConsumerBusyError(f"subscription {name} is in use with another Key_Shared mode")

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

    def lanes(self) -> Sequence[LaneView]:
        """The lanes that have existed for a while, the largest first."""
        now_ms, dispatch = self.path.clock.wall_ms(), self.dispatch
        slots = dict.fromkeys((*dispatch.lanes, *dispatch.holds))
        views = (view for slot in slots if (view := dispatch.view(slot)) is not None)
        old = (view for view in views if now_ms - view.since_ms >= self.path.keyed.after_ms)
        return nlargest(LANES_SHOWN, old, key=lambda view: (view.entries, -view.since_ms))

    def lane(self, slot: int) -> LaneView | None:
        """The lane of a slot, however young; None for a slot that goes on."""
        return self.dispatch.view(slot)

    def lane_ordinals(self, slot: int, limit: int) -> Sequence[int]:
        """The first entries that wait in a lane."""
        lane = self.dispatch.lanes.get(slot)
        return lane.first(limit) if lane is not None else ()

    def pause_slot(self, slot: int, until_ms: int, reason: LaneReason = LaneReason.RETRY) -> None:
        """Deliver nothing of a slot before this time."""
        self.dispatch.stop(slot, Hold(reason, self.path.clock.wall_ms(), until_ms))

    def park_slot(self, slot: int, note: str) -> None:
        """Deliver nothing of a slot until `release_slot`."""
        self.dispatch.stop(slot, Hold(LaneReason.PARKED, self.path.clock.wall_ms(), note=note))

    def release_slot(self, slot: int) -> bool:
        """Let a paused or parked slot go on; False if it was neither. The caller schedules a turn."""
        return self.dispatch.release(slot)

    def skip_slot(self, slot: int, entries: int | None = None) -> int:
        """Acknowledge the first waiting entries of a lane, or all of them; returns how many."""
        skipped = self.dispatch.skip(slot, entries)
        self.path.cursor.acknowledge(skipped)
        self.acknowledged(skipped)
        return len(skipped)

    @property
    def wake_at_ms(self) -> int | None:
        times = (super().wake_at_ms, self.dispatch.holds.next_end_ms)
        return min((time for time in times if time is not None), default=None)

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
        elif until_ms and (hold is None or 0 < hold.until_ms < until_ms):
            self.pause_slot(slot, until_ms)

    def _take_back(self, entries: Sequence[tuple[int, int, int]]) -> None:
        now_ms = self.path.clock.wall_ms()
        self.dispatch.take_back(((ordinal, slot) for ordinal, slot, _ in entries), now_ms)

    def _due(self, ordinal: int, slot: int) -> None:
        self.dispatch.due(ordinal, slot)

    def _settle_slot(self, slot: int) -> bool:
        return self.dispatch.settle(slot)

    def turn(self) -> bool:
        self._release_due()
        if len(self.dispatch.holds):
            self.dispatch.release_due(self.path.clock.wall_ms())
        if self._returning and self._take_some_back():
            return True
        more = self._lane_turn()
        if any(consumer.ready for consumer in self.consumers):
            more |= self._fresh_turn()
        self._flush()
        return more

    def _lane_turn(self) -> bool:
        """Deliver entries from lanes; whether more of them could go out at once."""
        dispatch, acks = self.dispatch, self.path.cursor.acks
        if self.blocked or not dispatch.held:
            return False
        handouts = dispatch.take(self.path.batch_entries)
        for at, handout in enumerate(handouts):
            receiver, ordinal, slot = handout
            assert isinstance(receiver, ServedConsumer)
            if ordinal in acks:
                dispatch.drop(handout)
                continue
            entries = self.path.source.read(ordinal, 1) if receiver.ready and not self.blocked else None
            if not entries:
                dispatch.put_back(handouts[at:])
                return False
            ack_set, messages = self._pending_of(entries[0])
            dispatch.hand_out(handout, messages)
            self._give(receiver, entries[0], slot, messages, ack_set)
        return bool(handouts)

    def _fresh_turn(self) -> bool:
        path, dispatch = self.path, self.dispatch
        acks = path.cursor.acks
        self.next = acks.next_pending(self.next)
        room = min(path.batch_entries, path.keyed.room(dispatch.lanes))
        if room <= 0 or self.blocked:
            return False
        entries = path.source.read(self.next, room)
        if not entries:
            return False
        now_ms = path.clock.wall_ms()
        boundaries = self.boundaries
        for entry in entries:
            ordinal = entry.ordinal
            self.next = ordinal + 1
            if ordinal in acks:
                continue
            if self._closed and slots_of(entry.data) is None:
                # A key of this batch may belong to a closed bucket, so no later entry may overtake it.
                self.next = ordinal
                return False
            outer = _outer(entry)
            slot = outer.sticky_hash if boundaries is None else bucket_index(boundaries, outer.bucket_hash)
            size = len(entry.data)
            if outer.deliver_at_ms > now_ms:
                self._delayed.add(outer.deliver_at_ms, ordinal, slot)
                dispatch.delay(ordinal, slot, size=size, now_ms=now_ms)
                continue
            ack_set, messages = self._pending_of(entry)
            receiver = dispatch.offer(ordinal, slot, messages, size=size, now_ms=now_ms)
            if isinstance(receiver, ServedConsumer):
                self._give(receiver, entry, slot, messages, ack_set)
        return self.next < path.source.end


def range_pairs(meta: pb.KeySharedMeta) -> list[tuple[int, int]]:
    """The hash ranges that a Key_Shared consumer sends."""
    return [(part.start, part.end) for part in meta.hashRanges]


def _outer(entry: Entry) -> Outer:
    try:
        return read_outer(entry.data)
    except RemoteProtocolError:
        # The broker stores entries unread. The consumer of this one refuses and acknowledges it.
        return Outer("", 0, 0, entry.count, False, 1, 1, 1, False, 0, 0)
