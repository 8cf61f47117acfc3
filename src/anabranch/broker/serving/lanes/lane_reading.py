"""The lanes of a keyed subscription: entries that waited go out, and lanes are shown and controlled.

Fresh entries are read by `keyed_reading.py`. Entries of lanes are read one by one, as exactly as they are
delivered, in a channel of their own; so neither kind of reading waits for the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest

from anabranch.broker.dispatch.keyed import Handout, KeyedDispatch
from anabranch.broker.dispatch.lane_views import lane_view, stopped_slots
from anabranch.broker.dispatch.lanes import LaneReason, LaneView
from anabranch.broker.dispatch.outstanding import Outstanding
from anabranch.broker.dispatch.slot_holds import Hold
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.lanes.lane_keeping import LaneKeeper
from anabranch.broker.serving.lanes.look_aside import LookAside
from anabranch.broker.serving.reading.pending_reading import PendingReading
from anabranch.broker.serving.reading.reading import ReadPath
from anabranch.ledger.storage import Entry
from anabranch.protocol.outer import deliver_at_ms

_log = logging.getLogger(__name__)

LANES_SHOWN = 1000
"""Most lanes that a view lists."""

AHEAD_ENTRIES = 256
"""Entries that one read from disk takes for lanes, also if their consumers have permits for fewer."""


class LaneReading(PendingReading):
    """The base of KeyedReading: all that happens to entries which cannot go out at once."""

    def __init__(self, path: ReadPath, boundaries: tuple[int, ...] | None) -> None:
        super().__init__(path)
        self.boundaries = boundaries
        """Split points of the buckets when whole buckets are dispatched, None for single keys."""
        self.dispatch = KeyedDispatch()
        self._outstanding = Outstanding(path.keyed.unacked_ms)
        self._aside = LookAside()
        self.delayed_pass = False
        """Whether later entries of a slot pass a delayed one."""
        self._keeper = LaneKeeper(path, self.dispatch, boundaries)
        self._now_ms = path.clock.wall_ms()
        """Wall time of this turn."""
        self.next = self._keeper.restore()

    @property
    def at_end(self) -> bool:
        waiting = self.dispatch.held or len(self._delayed) or self._keeper.scanning
        return super().at_end and not waiting

    @property
    def delayed(self) -> int:
        return super().delayed + self.dispatch.holds.count(LaneReason.DELAYED)

    @property
    def replayed(self) -> int:
        return super().replayed + self.dispatch.held - self.dispatch.holds.count(LaneReason.DELAYED)

    def rewind(self) -> None:
        super().rewind()
        self.dispatch.clear()
        self._outstanding.clear()
        self._aside.clear()
        self.next = self._keeper.restore()

    def remember(self) -> None:
        """Write down which slots have lanes, because the last consumer left."""
        self._write_note()
        self.path.source.forget()

    # Views and controls.

    def lanes(self) -> Sequence[LaneView]:
        """The lanes that have existed for a while, the largest first."""
        until_ms = self.path.clock.wall_ms() - self.path.keyed.after_ms
        old = (one for one in stopped_slots(self.dispatch) if one[1] <= until_ms)
        largest = nlargest(LANES_SHOWN, old, key=lambda one: (one[2], -one[1]))
        return [view for slot, _, _ in largest if (view := lane_view(self.dispatch, slot)) is not None]

    def lane(self, slot: int) -> LaneView | None:
        """The lane of a slot, however young; None for a slot that goes on."""
        return lane_view(self.dispatch, slot)

    def lane_ordinals(self, slot: int, limit: int) -> Sequence[int]:
        """The first entries that wait in a lane."""
        lane = self.dispatch.lanes.get(slot)
        return lane.first(limit) if lane is not None else ()

    def pause_slot(self, slot: int, until_ms: int, reason: LaneReason = LaneReason.RETRY) -> None:
        """Deliver nothing of a slot before this time."""
        self.dispatch.stop(slot, Hold(reason, self.path.clock.wall_ms(), until_ms))
        self._keeper.hasten()

    def park_slot(self, slot: int, note: str) -> None:
        """Deliver nothing of a slot until `release_slot`; durable with the next commit."""
        self.dispatch.stop(slot, Hold(LaneReason.PARKED, self.path.clock.wall_ms(), note=note))
        self._write_note()

    def release_slot(self, slot: int) -> bool:
        """Let a paused or parked slot go on; False if it was neither. The caller schedules a turn."""
        released = self.dispatch.release(slot)
        if released:
            self._write_note()
        return released

    def skip_slot(self, slot: int, entries: int | None = None) -> int:
        """Acknowledge the first waiting entries of a lane, or all of them; returns how many."""
        skipped = self.dispatch.skip(slot, entries)
        self._aside.drop(skipped)
        self.path.cursor.acknowledge(skipped)
        self.acknowledged(skipped)
        return len(skipped)

    # Outstanding entries.

    def _give(
        self, consumer: ServedConsumer, entry: Entry, slot: int, messages: int, ack_set: tuple[int, ...]
    ) -> None:
        self._outstanding.add(entry.ordinal, self._now_ms)
        super()._give(consumer, entry, slot, messages, ack_set)

    def _settled(self, ordinal: int, slot: int) -> bool:
        more = self._outstanding.remove(ordinal) and self.dispatch.uncount_overdue(slot)
        return self.dispatch.settle(slot) or more

    def _take_back(self, entries: Sequence[tuple[int, int, int]]) -> None:
        for ordinal, slot, _ in entries:
            if self._outstanding.remove(ordinal):
                self.dispatch.uncount_overdue(slot)
        self.dispatch.take_back(((ordinal, slot) for ordinal, slot, _ in entries), self._now_ms)

    def _due(self, ordinal: int, slot: int) -> None:
        self.dispatch.hold(ordinal, slot, now_ms=self._now_ms)

    def _delay(self, ordinal: int, slot: int, at_ms: int, size: int) -> None:
        """Hold an entry until its delivery time, at the head of its lane or apart from it."""
        if self.delayed_pass:
            self._delayed.add(at_ms, ordinal, slot)
        else:
            self.dispatch.delay(ordinal, slot, at_ms, size=size, now_ms=self._now_ms)

    def _outstanding_slots(self) -> Iterator[tuple[int, int]]:
        return ((ordinal, self._out[ordinal][1]) for ordinal in self._outstanding.ordinals)

    # Turns.

    @property
    def wake_at_ms(self) -> int | None:
        ends = (
            self.dispatch.holds.next_end_ms,
            self._outstanding.next_ms,
            self._keeper.wake_ms(self.next),
        )
        return min((time for time in (super().wake_at_ms, *ends) if time is not None), default=None)

    def _begin_turn(self) -> None:
        """Let go on what waited for a time, and find the entries that were not acknowledged in time."""
        now_ms = self._now_ms = self.path.clock.wall_ms()
        if len(self.dispatch.holds):
            self.dispatch.release_due(now_ms)
        due_ms = self._outstanding.next_ms
        if due_ms is not None and due_ms <= now_ms:
            for ordinal in self._outstanding.expire(now_ms):
                self.dispatch.count_overdue(self._out[ordinal][1], now_ms)
            self.dispatch.stop_overdue()

    def _room(self) -> int:
        """How many fresh entries may be read now; reports a bound of lanes when it is reached."""
        room = self.path.keyed.room(self.dispatch.lanes)
        if room > 0:
            self.trouble = None
        elif self.trouble is None:
            bound = self.path.keyed.bound(self.dispatch.lanes)
            self.trouble = f"no further entries are read, because {bound}"
            self.path.counters.lane_bounds += 1
            name, log = self.path.cursor.name, self.path.source.log.name
            _log.warning("%s: subscription %s: %s", log, name, self.trouble)
        return min(room, self.path.batch_entries)

    def _write_note(self) -> None:
        self._keeper.write(self.next, self._outstanding_slots())

    def _lane_turn(self) -> bool:
        """Deliver entries from lanes; whether more of them could go out at once."""
        if self._blocked or not self.dispatch.held:
            return False
        handouts = self.dispatch.take(self.path.batch_entries)
        found = self._read_lanes(handouts)
        acks, waiting, moved = self.path.cursor.acks, set[int](), False
        for handout in handouts:
            receiver, ordinal, slot = handout
            assert isinstance(receiver, ServedConsumer)
            if ordinal in acks:
                self.dispatch.drop(handout)
                moved = True
                continue
            entry = found.get(ordinal)
            if entry is None or slot in waiting or not receiver.ready or self._blocked:
                # Later entries of the slot wait too.
                waiting.add(slot)
                self.dispatch.put_back((handout,))
                continue
            if (at_ms := deliver_at_ms(entry.data)) > self._now_ms:
                waiting.add(slot)
                self.dispatch.drop(handout)
                self._delay(ordinal, slot, at_ms, len(entry.data))
                continue
            ack_set, messages = self._pending_of(entry)
            self.dispatch.hand_out(handout, messages)
            self._give(receiver, entry, slot, messages, ack_set)
            del found[ordinal]
            moved = True
        for entry in found.values():
            self._aside.keep(entry)
        return moved

    def _read_lanes(self, handouts: Sequence[Handout]) -> dict[int, Entry]:
        """The entries of these handouts, as far as they are in memory; the others are fetched."""
        acks, found, missing = self.path.cursor.acks, dict[int, Entry](), list[int]()
        for entry in self.path.source.take_fetched():
            self._aside.keep(entry)
        slots: dict[int, None] = {}
        unreadable = self.path.source.unreadable
        stopped = {slot for _, ordinal, slot in handouts if ordinal == unreadable}
        for _, ordinal, slot in handouts:
            if (kept := self._aside.take(ordinal)) is not None:
                found[ordinal] = kept
            elif ordinal not in acks and slot not in stopped:
                missing.append(ordinal)
                slots[slot] = None
        if missing:
            missing.sort()
            entries = self.path.source.read_each(missing, self._ahead(slots, missing))
            found.update((entry.ordinal, entry) for entry in entries or ())
        return found

    def _ahead(self, slots: Iterable[int], missing: Sequence[int]) -> list[int]:
        """The next entries of these lanes after the missing ones, for one read from disk."""
        after = missing[-1] + 1
        # Entries far ahead would be dropped from memory before their turn comes.
        end, ahead = after + AHEAD_ENTRIES, list[int]()
        for slot in slots:
            room = AHEAD_ENTRIES - len(missing) - len(ahead)
            lane = self.dispatch.lanes.get(slot)
            if room > 0 and lane is not None:
                ahead += (one for one in lane.between(after, end, room) if one not in self._aside)
        return sorted(ahead)
