"""The lanes of one subscription: entries of stuck slots wait here, go out later, are shown and controlled.

A strategy by key or bucket has one `SubscriptionLanes`. It reads fresh entries itself and leaves everything
that happens to entries which cannot go out at once to this object.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from heapq import nlargest

from anabranch.broker.dispatch.delays import Delays
from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.lane_views import lane_view, waiting_slots
from anabranch.broker.dispatch.lanes import LaneReason, LaneView
from anabranch.broker.dispatch.outstanding import OutstandingAges
from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.selectors import SlotOwners
from anabranch.broker.dispatch.slot_stops import SlotStop
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.delivery.outstanding import SLICE_ENTRIES, OutstandingEntries
from anabranch.broker.serving.delivery.read_path import ReadPath
from anabranch.broker.serving.delivery.retries import Retry
from anabranch.broker.serving.lanes.lane_entries import LaneEntries
from anabranch.broker.serving.lanes.lane_keeping import LaneKeeper
from anabranch.broker.serving.lanes.relieving import Relieving
from anabranch.errors import RemoteProtocolError
from anabranch.ledger.storage import Entry
from anabranch.model.hashing import bucket_index
from anabranch.protocol.outer import Outer, deliver_at_ms, read_outer

_log = logging.getLogger(__name__)

LANES_SHOWN = 1000
"""Most lanes that a view lists."""


class SubscriptionLanes:
    """The waiting entries of one subscription by key or bucket, and its outstanding ones."""

    def __init__(self, path: ReadPath, boundaries: tuple[int, ...] | None) -> None:
        self.boundaries = boundaries
        """Split points of the buckets when whole buckets are dispatched, None for single keys."""
        self.dispatch = KeyedDispatch()
        self.ages = OutstandingAges(path.keyed.unacked_ms)
        # Not a method: the lanes of an unloaded log must not stay in memory because of a cycle of references.
        self.outstanding = OutstandingEntries(path, partial(_settled, self.ages, self.dispatch))
        self.passable_delays = Delays()
        """Delayed entries which later entries of their slots may pass."""
        self.delayed_pass = False
        """Whether later entries of a slot pass a delayed one."""
        self.now_ms = path.clock.wall_ms()
        """Wall time of this turn."""
        self.readers: Collection[Receiver] = ()
        """The consumers that fresh entries may be for."""
        self.trouble: str | None = None
        """Why no further entries are read, in words; None while they are."""
        self._path = path
        self._entries = LaneEntries(path, self.dispatch.lanes)
        self.aside = self._entries.aside
        """Waiting entries that stay in memory for a while."""
        self._keeper = LaneKeeper(path, self.dispatch, boundaries)
        self._relieving = Relieving(path, self.dispatch)
        path.next = self._keeper.restore()

    def rewind(self) -> None:
        """Forget everything but the note of the cursor, and read from there."""
        self.passable_delays.clear()
        self.dispatch.clear()
        self.ages.clear()
        self.aside.clear()
        self._path.next = self._keeper.restore()

    # Views and controls.

    @property
    def empty(self) -> bool:
        """Whether no entry waits, nor can be found to wait."""
        return not (self.dispatch.waiting or len(self.passable_delays) or self._keeper.scanning)

    @property
    def delayed(self) -> int:
        """Entries that wait for their delivery time; of a stopped slot only the first one counts."""
        return len(self.passable_delays) + self.dispatch.stops.count(LaneReason.DELAYED)

    @property
    def replayed(self) -> int:
        """Entries that were read before and wait for something else than their delivery time."""
        return self.dispatch.waiting - self.dispatch.stops.count(LaneReason.DELAYED)

    @property
    def explained(self) -> Sequence[str]:
        """The slots that are away from their owners, in words."""
        return self._relieving.explained

    @property
    def shown_since_ms(self) -> int:
        """Lanes that have existed since this wall time are shown; a younger one is an ordinary wait."""
        return self._path.clock.wall_ms() - self._path.keyed.after_ms

    def listed(self) -> Sequence[LaneView]:
        """Return the lanes that have existed for a while, the largest first."""
        until_ms = self.shown_since_ms
        old = (one for one in waiting_slots(self.dispatch) if one[1] <= until_ms)
        largest = nlargest(LANES_SHOWN, old, key=lambda one: (one[2], -one[1]))
        return [view for slot, _, _ in largest if (view := lane_view(self.dispatch, slot)) is not None]

    def view(self, slot: int) -> LaneView | None:
        """Return the lane of a slot, however young; None for a slot that goes on."""
        return lane_view(self.dispatch, slot)

    def ordinals(self, slot: int, limit: int) -> Sequence[int]:
        """Return the first entries that wait in a lane."""
        lane = self.dispatch.lanes.get(slot)
        return lane.first(limit) if lane is not None else ()

    def pause(self, slot: int, until_ms: int, reason: LaneReason = LaneReason.RETRY) -> None:
        """Deliver nothing of a slot before this time."""
        self.dispatch.stop(slot, SlotStop(reason, self._path.clock.wall_ms(), until_ms))
        self._keeper.hasten()

    def park(self, slot: int, note: str) -> None:
        """Deliver nothing of a slot until `release`; durable with the next commit."""
        self.dispatch.stop(slot, SlotStop(LaneReason.PARKED, self._path.clock.wall_ms(), note=note))
        self._write_note()

    def release(self, slot: int) -> bool:
        """Let a paused or parked slot go on; False if it was neither. The caller schedules a turn."""
        released = self.dispatch.release(slot)
        if released:
            self._write_note()
        return released

    def skip(self, slot: int, entries: int | None = None) -> int:
        """Acknowledge the first waiting entries of a lane, or all of them; returns how many."""
        skipped = self.dispatch.skip(slot, entries)
        self.aside.drop(skipped)
        self._path.cursor.acknowledge(skipped)
        self.outstanding.acknowledged(skipped)
        return len(skipped)

    def stop_for_retry(self, slot: int, retry: Retry) -> None:
        """Stop a slot as the client that wants an entry of it again asks; a longer stop stays."""
        stop = self.dispatch.stops.get(slot)
        until_ms = self._path.clock.wall_ms() + retry.pause_ms if retry.pause_ms else 0
        if retry.park is not None:
            self.park(slot, retry.park)
        elif until_ms and (stop is None or stop.reason is LaneReason.DELAYED or 0 < stop.until_ms < until_ms):
            self.pause(slot, until_ms)

    # Owners of slots.

    def share(self, owners: SlotOwners) -> None:
        """Let these receivers have the slots, except those that relief moves away from busy ones."""
        self.readers = owners.readers
        selector = self._relieving.over(owners.selector) if owners.movable else owners.selector
        self.dispatch.change(selector, owners.closed)

    def remember(self) -> None:
        """Write down which slots have lanes, because the last consumer left."""
        self._write_note()
        self._path.source.forget()

    # Outstanding entries.

    def take_back(self) -> None:
        """Let a slice of the entries that come back wait in their lanes, before all later ones."""
        entries = self.outstanding.take_back()
        for ordinal, slot in entries:
            if self.ages.remove(ordinal):
                self.dispatch.uncount_overdue(slot)
        self.dispatch.take_back(entries, self.now_ms)

    def _outstanding_slots(self) -> Iterator[tuple[int, int]]:
        known = self.outstanding.by_ordinal
        return ((ordinal, known[ordinal][1]) for ordinal in self.ages.ordinals)

    def _write_note(self) -> None:
        self._keeper.write(self._path.next, self._outstanding_slots())

    # Turns.

    def slot_of(self, outer: Outer) -> int:
        """Return the slot of an entry: the hash of its key, or its bucket."""
        boundaries = self.boundaries
        return outer.sticky_hash if boundaries is None else bucket_index(boundaries, outer.bucket_hash)

    @property
    def wake_at_ms(self) -> int | None:
        """When the next turn has something to do, if nothing happens before."""
        times = (
            self.passable_delays.next_ms,
            self.dispatch.stops.next_end_ms,
            self.ages.next_ms,
            self._keeper.wake_ms(self._path.next),
            self._relieving.wake_ms(self.readers),
        )
        return min((time for time in times if time is not None), default=None)

    def begin_turn(self) -> None:
        """Let go on what waited for a time, and find the entries that were not acknowledged in time."""
        now_ms = self.now_ms = self._path.clock.wall_ms()
        if len(self.dispatch.stops):
            self.dispatch.release_due(now_ms)
        due_ms = self.ages.next_ms
        if due_ms is not None and due_ms <= now_ms:
            for ordinal in self.ages.expire(now_ms):
                self.dispatch.count_overdue(self.outstanding.by_ordinal[ordinal][1], now_ms)
            self.dispatch.stop_overdue()
        if self.passable_delays:
            # A slice of them; the timer wakes at once for the others.
            for _, ordinal, slot in self.passable_delays.pop_due(self._path.clock.wall_ms(), SLICE_ENTRIES):
                self.dispatch.let_wait(ordinal, slot, now_ms=now_ms)

    def end_turn(self) -> bool:
        """Relieve busy consumers, send, and write a note if one is due; whether more may go out."""
        more = self._relieving.turn(self.readers, self.now_ms)
        self.outstanding.flush()
        self._keeper.turn(self._path.next, self._outstanding_slots())
        return more

    def room(self) -> int:
        """Return how many fresh entries may be read now; reports a bound of lanes when it is reached."""
        path = self._path
        room = path.keyed.room(self.dispatch.lanes)
        if room > 0:
            self.trouble = None
        elif self.trouble is None:
            bound = path.keyed.bound(self.dispatch.lanes)
            self.trouble = f"no further entries are read, because {bound}"
            path.counters.lane_bounds += 1
            name, log = path.cursor.name, path.source.log.name
            _log.warning("%s: subscription %s: %s", log, name, self.trouble)
        return min(room, path.batch_entries)

    def delay(self, ordinal: int, slot: int, at_ms: int, size: int) -> None:
        """Let an entry wait for its delivery time, at the head of its lane or apart from it."""
        if self.delayed_pass:
            self.passable_delays.add(at_ms, ordinal, slot)
        else:
            self.dispatch.delay(ordinal, slot, at_ms, size=size, now_ms=self.now_ms)

    def deliver(self) -> bool:
        """Deliver entries from lanes; whether more of them could go out at once."""
        outstanding, dispatch = self.outstanding, self.dispatch
        if outstanding.blocked or not dispatch.waiting:
            return False
        handouts = dispatch.take(self._path.batch_entries)
        found = self._entries.read(handouts)
        acks, passed_over, moved = self._path.cursor.acks, set[int](), False
        for handout in handouts:
            receiver, ordinal, slot = handout
            assert isinstance(receiver, ServedConsumer)
            if ordinal in acks:
                dispatch.drop(handout)
                moved = True
                continue
            entry = found.get(ordinal)
            if entry is None or slot in passed_over or not receiver.ready or outstanding.blocked:
                # Later entries of the slot wait too.
                passed_over.add(slot)
                dispatch.put_back((handout,))
                continue
            if (at_ms := deliver_at_ms(entry.data)) > self.now_ms:
                passed_over.add(slot)
                dispatch.drop(handout)
                self.delay(ordinal, slot, at_ms, len(entry.data))
                continue
            ack_set, messages = self._path.pending_of(entry)
            dispatch.hand_out(handout, messages)
            self.ages.add(ordinal, self.now_ms)
            outstanding.give(receiver, entry, slot, messages, ack_set)
            del found[ordinal]
            moved = True
        for entry in found.values():
            self.aside.keep(entry)
        return moved

    def find_waiting(self) -> bool:
        """After a restart, find some more of the entries that waited before; whether to go on at once."""
        return self._keeper.scanning and self._keeper.scan_turn(self._add_found)

    def _add_found(self, entry: Entry) -> None:
        """Put an entry below the floor of the last note into its lane."""
        outer = outer_of(entry)
        slot = self.slot_of(outer)
        if outer.deliver_at_ms > self.now_ms:
            self.delay(entry.ordinal, slot, outer.deliver_at_ms, len(entry.data))
        else:
            self.dispatch.let_wait(entry.ordinal, slot, size=len(entry.data), now_ms=self.now_ms)
            self.aside.keep(entry)


def _settled(ages: OutstandingAges, dispatch: KeyedDispatch, ordinal: int, slot: int) -> bool:
    """Forget an outstanding entry that is acknowledged; whether more may go out because of it."""
    more = ages.remove(ordinal) and dispatch.uncount_overdue(slot)
    return dispatch.settle(slot) or more


def outer_of(entry: Entry) -> Outer:
    """Return the outer metadata of an entry; if it cannot be read, that of an entry without a key."""
    try:
        return read_outer(entry.data)
    except RemoteProtocolError:
        # The broker stores entries unread. The consumer of this one refuses and acknowledges it.
        return Outer("", 0, 0, entry.count, False, 1, 1, 1, False, 0, 0)
