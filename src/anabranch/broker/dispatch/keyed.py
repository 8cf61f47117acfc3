"""Key_Shared subscriptions: the entries of a slot go out in order, to one receiver at a time.

Entries are ordinals here. The subscription offers them, delivers what it is handed and reports the result.
The outstanding entries of a slot are all at one receiver, and the slot moves to another one only when none is
left. An entry that cannot go out waits in the lane of its slot.

For example, entries 7, 8 and 9 have slots 3, 3 and 5, receiver A owns slot 3 and B owns slot 5. A has one
permit. `offer(7, 3, 1)` returns A, which is not ready any more. `offer(8, 3, 1)` returns None: 8 waits in
lane 3. `offer(9, 5, 1)` returns B, so slot 5 does not notice. When A gets permits, `take` returns 8 for A. If
A leaves first, the selector names B for slot 3, but 8 waits until 7 is settled or taken back; in the latter
case lane 3 has 7 and 8, and `take` returns them for B in this order.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from anabranch.broker.dispatch.lanes import LaneReason, Lanes
from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.selectors import AutoSplit, Selector
from anabranch.broker.dispatch.slot_stops import SlotStop, SlotStops


class Handout(NamedTuple):
    """A waiting entry that may go out to this receiver now.

    It is out of its lane until one of three calls follows: `hand_out`, `drop` or `put_back`.
    """

    receiver: Receiver
    ordinal: int
    slot: int


class KeyedDispatch:
    """Lets an entry that cannot go out wait behind the earlier ones of its slot, while other slots go on."""

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.stops = SlotStops()
        self.overdue: dict[int, tuple[int, int]] = {}
        """For each slot with overdue entries their number, and the time of the first one."""
        self._stuck: set[int] = set()
        """Slots that stop because of overdue entries."""
        self._floor = 0
        """First ordinal that a restored lane must not let out yet."""
        self._selector: Selector = AutoSplit()
        self.closed: frozenset[int] = frozenset()
        self._outstanding_at: dict[int, Receiver] = {}
        """For each slot with outstanding entries the receiver that has them."""
        self._outstanding: dict[int, int] = {}
        """For each slot the number of its outstanding entries, if there are any."""
        self._changed = False
        # Per receiver the first waiting entry of each slot that it may take; stale pairs are skipped.
        self._takable: dict[Receiver, list[tuple[int, int]]] = {}

    @property
    def waiting(self) -> int:
        """Entries that wait in lanes."""
        return self.lanes.waiting

    def change(self, selector: Selector, closed: frozenset[int] = frozenset()) -> None:
        """Use the owners that `selector` names; a slot with outstanding entries moves when they are settled.

        Slots that are `closed` have no owner yet.
        """
        self._selector = selector
        self.closed = closed
        # The next `take` offers all waiting entries again, so that many changes at once cost as much as one.
        self._changed = True

    @property
    def handovers(self) -> int:
        """Slots that wait for their former owner's acknowledgements before the next one gets them."""
        owner = self._selector.owner
        return sum(owner(slot) not in (None, now) for slot, now in self._outstanding_at.items())

    def clear(self) -> None:
        """Forget all waiting and outstanding entries, because the subscription starts to read elsewhere."""
        self.lanes.clear()
        self.stops.clear()
        self.overdue.clear()
        self._stuck.clear()
        self._outstanding_at.clear()
        self._outstanding.clear()
        self._takable.clear()

    # Called for every fresh entry, so the usual one pays for three lookups that find nothing, the owner, and
    # the receiver of the slot's outstanding entries. Order is kept by these two conditions: an entry never
    # passes the lane of its slot, and a slot never has outstanding entries at two receivers. Without the
    # second, a slot that moves to a new owner would be read by both while the former one still works on the
    # earlier entries.
    def offer(
        self, ordinal: int, slot: int, messages: int, *, size: int = 0, now_ms: int = 0
    ) -> Receiver | None:
        """Take the next entry of the log; return the receiver that gets it now, or None if it has to wait."""
        if slot not in self.lanes and slot not in self.stops and slot not in self._stuck:
            owner = self._selector.owner(slot)
            if owner is not None and owner.ready and self._outstanding_at.get(slot, owner) is owner:
                self._charge(owner, slot, messages)
                return owner
        self.let_wait(ordinal, slot, size=size, now_ms=now_ms)
        return None

    def let_wait(self, ordinal: int, slot: int, *, size: int = 0, now_ms: int = 0) -> None:
        """Put an entry into the lane of its slot, where it waits behind the earlier ones."""
        if self.lanes.add(slot, ordinal, size, now_ms):
            self._offer_head(slot)

    def delay(self, ordinal: int, slot: int, at_ms: int, *, size: int = 0, now_ms: int = 0) -> None:
        """Let an entry wait until `at_ms`, and its slot behind it; behind others it waits for them first."""
        if self.lanes.add(slot, ordinal, size, now_ms) and slot not in self.stops:
            self.stops.put(slot, SlotStop(LaneReason.DELAYED, now_ms, at_ms))

    def take(self, limit: int) -> list[Handout]:
        """Return waiting entries that may go out now, at most `limit`; oldest first for each receiver."""
        if self._changed:
            self._changed = False
            self._takable.clear()
            for slot in self.lanes:
                self._offer_head(slot)
        handouts: list[Handout] = []
        for receiver, heap in list(self._takable.items()):
            # Each entry takes one permit at least; how many is known when it is read.
            last = min(limit, len(handouts) + receiver.permits) if receiver.ready else 0
            while heap and len(handouts) < last:
                ordinal, slot = heappop(heap)
                if self.lanes.head(slot) == ordinal and self.target(slot) is receiver:
                    self.lanes.pop(slot)
                    self._offer_head(slot)
                    handouts.append(Handout(receiver, ordinal, slot))
            if last:
                # The others come first the next time.
                self._takable[receiver] = self._takable.pop(receiver)
        return handouts

    def hand_out(self, handout: Handout, messages: int) -> None:
        """Count an entry that was taken as delivered."""
        self._charge(handout.receiver, handout.slot, messages)
        self.lanes.close_if_empty(handout.slot)

    def drop(self, handout: Handout) -> None:
        """Forget an entry that was taken, because it was acknowledged before it went out."""
        self.lanes.close_if_empty(handout.slot)

    def put_back(self, handouts: Iterable[Handout]) -> None:
        """Let entries that were taken wait again, because they could not go out."""
        for _, ordinal, slot in handouts:
            self.let_wait(ordinal, slot)

    def skip(self, slot: int, limit: int | None = None) -> list[int]:
        """Take the first entries out of a lane for good, or all of them; returns their ordinals."""
        lane = self.lanes.get(slot)
        count = 0 if lane is None else lane.count
        skipped = [self.lanes.pop(slot) for _ in range(count if limit is None else min(limit, count))]
        self.lanes.close_if_empty(slot)
        self._ask_again(slot)
        return skipped

    def settle(self, slot: int) -> bool:
        """Note the acknowledgement of an outstanding entry; whether it lets a waiting entry go out."""
        left = self._outstanding[slot] - 1
        if left:
            self._outstanding[slot] = left
            return False
        del self._outstanding[slot]
        receiver = self._outstanding_at.pop(slot)
        if slot not in self.lanes or self._selector.owner(slot) is receiver:
            return False
        return self._offer_head(slot)

    def take_back(self, entries: Iterable[tuple[int, int]], now_ms: int = 0) -> None:
        """Let outstanding entries, as (ordinal, slot), wait for another delivery, before all later ones."""
        slots: dict[int, None] = {}
        for ordinal, slot in entries:
            slots[slot] = None
            self.lanes.add(slot, ordinal, 0, now_ms)
            self.settle(slot)
        for slot in slots:
            self._ask_again(slot)

    def stop(self, slot: int, stop: SlotStop) -> None:
        """Let no entry of a slot go out until the stop ends, or `release`."""
        self.stops.put(slot, stop)

    def release(self, slot: int) -> bool:
        """Undo `stop`; whether the slot was stopped."""
        stop = self.stops.get(slot)
        if stop is None or stop.reason is LaneReason.DELAYED:
            return False
        self.stops.pop(slot)
        self._offer_head(slot)
        return True

    def release_due(self, now_ms: int) -> None:
        """Let the slots go on whose stops end by themselves."""
        for slot in self.stops.pop_due(now_ms):
            self._offer_head(slot)

    def count_overdue(self, slot: int, now_ms: int) -> None:
        """Note that an outstanding entry of a slot is not acknowledged in time."""
        count, since_ms = self.overdue.get(slot, (0, now_ms))
        self.overdue[slot] = count + 1, since_ms

    def uncount_overdue(self, slot: int) -> bool:
        """Note that an overdue entry is settled; whether it lets a waiting entry go out."""
        count, since_ms = self.overdue.pop(slot)
        if count > 1:
            self.overdue[slot] = count - 1, since_ms
            return False
        self._stuck.discard(slot)
        return self._offer_head(slot)

    def stop_overdue(self) -> None:
        """Stop the slots with overdue entries whose receiver will soon get no more messages.

        A receiver that takes much and acknowledges rarely goes on: it may wait for later entries of the slot
        before it acknowledges.
        """
        for slot in self.overdue.keys() - self._stuck:
            receiver = self._outstanding_at.get(slot)
            if receiver is not None and receiver.short:
                self._stuck.add(slot)

    def restore(self, slots: Iterable[tuple[int, int]], floor: int) -> None:
        """Open lanes, as (slot, since_ms), whose entries below `floor` follow by `let_wait`, in order."""
        self._floor = floor
        for slot, since_ms in slots:
            self.lanes.open(slot, since_ms).restored = True

    def restored(self) -> None:
        """Note that all pending entries below the floor are in lanes; restored lanes are like others now."""
        self._floor = 0
        for slot in list(self.lanes):
            lane = self.lanes.get(slot)
            if lane is not None and lane.restored:
                lane.restored = False
                self.lanes.close_if_empty(slot)
        self._changed = True

    def outstanding_at(self, slot: int) -> Receiver | None:
        """Return the receiver that has outstanding entries of a slot."""
        return self._outstanding_at.get(slot)

    def is_idle(self, slot: int) -> bool:
        """Return whether nothing of a slot is outstanding."""
        return slot not in self._outstanding

    def moved(self, slot: int) -> None:
        """Note that the selector names another owner for a slot."""
        self._offer_head(slot)

    def target(self, slot: int) -> Receiver | None:
        """Return the receiver of the slot's next entry: its owner, unless another one has earlier entries."""
        if slot in self.stops or slot in self._stuck:
            return None
        lane = self.lanes.get(slot)
        if lane is not None and lane.restored and lane.head >= self._floor:
            return None
        owner = self._selector.owner(slot)
        return owner if owner is None or self._outstanding_at.get(slot, owner) is owner else None

    def owner(self, slot: int) -> Receiver | None:
        """Return the receiver that gets the slot when no other one has entries of it."""
        return self._selector.owner(slot)

    def _ask_again(self, slot: int) -> None:
        """Offer the first entry of a lane, which is another one now; a delay counted for the former one."""
        stop = self.stops.get(slot)
        if stop is not None and stop.reason is LaneReason.DELAYED:
            self.stops.pop(slot)
        self._offer_head(slot)

    def _charge(self, receiver: Receiver, slot: int, messages: int) -> None:
        receiver.charge(messages)
        self._outstanding_at[slot] = receiver
        self._outstanding[slot] = self._outstanding.get(slot, 0) + 1

    def _offer_head(self, slot: int) -> bool:
        """Note the first entry of a lane for the receiver that may take it; False if no receiver may."""
        head = self.lanes.head(slot)
        target = self.target(slot) if head >= 0 else None
        if target is None:
            return False
        heap = self._takable.setdefault(target, [])
        heappush(heap, (head, slot))
        if len(heap) > 2 * len(self.lanes) + 64:
            heap[:] = dict.fromkeys(pair for pair in heap if self.lanes.head(pair[1]) == pair[0])
            heapify(heap)
        return True
