"""Key_Shared subscriptions: the entries of a slot go out in order, to one receiver at a time.

Entries are ordinals here. The subscription offers them, delivers what it is handed and reports the result.
A slot has at most one holder, the receiver with entries of it that are not settled yet, and moves to another
receiver only when it has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.selectors import AutoSplit, Selector


class Handout(NamedTuple):
    """A held entry may go out to this receiver now."""

    receiver: Receiver
    ordinal: int
    slot: int
    messages: int


class KeyedDispatch:
    """Holds an entry that cannot go out behind the earlier ones of its slot, while other slots go on."""

    def __init__(self) -> None:
        self.held = 0
        """Entries read but not given out; the caller bounds by it how far it reads ahead."""
        self._selector: Selector = AutoSplit()
        self._holders: dict[int, Receiver] = {}
        self._outstanding: dict[int, int] = {}
        self._queues: dict[int, list[tuple[int, int]]] = {}
        """Heaps of (ordinal, messages), so that an entry that comes back finds its place at once."""
        self._changed = False
        self._delayed: set[int] = set()
        # Per receiver the first held entry of each slot that it may take. Stale pairs are skipped when met.
        self._takable: dict[Receiver, list[tuple[int, int]]] = {}

    def change(self, selector: Selector) -> None:
        """Use the owners that `selector` names; a slot with a holder moves when its entries are settled."""
        self._selector = selector
        # The next `take` offers all held entries anew, so that many changes at once cost as much as one.
        self._changed = True

    @property
    def withheld(self) -> int:
        """Slots that wait for their former owner's acknowledgements before the next one gets them."""
        owner = self._selector.owner
        return sum(owner(slot) not in (None, holder) for slot, holder in self._holders.items())

    def clear(self) -> None:
        """Forget all held and outstanding entries, because the subscription starts to read elsewhere."""
        self.held = 0
        self._holders.clear()
        self._outstanding.clear()
        self._queues.clear()
        self._delayed.clear()
        self._takable.clear()

    def offer(self, ordinal: int, slot: int, messages: int) -> Receiver | None:
        """Take the next entry of the log; return the receiver that gets it now, or None when it is held."""
        if slot not in self._queues:
            owner = self._selector.owner(slot)
            if owner is not None and owner.ready and self._holders.get(slot, owner) is owner:
                self._hand_out(owner, slot, messages)
                return owner
        self._hold(ordinal, slot, messages)
        return None

    def delay(self, ordinal: int, slot: int, messages: int) -> None:
        """Take the next entry of the log and hold it, and its slot behind it, until `due`."""
        self._delayed.add(ordinal)
        self._hold(ordinal, slot, messages)

    def due(self, ordinal: int, slot: int) -> None:
        """Let a delayed entry go out from now on."""
        self._delayed.discard(ordinal)
        if slot in self._queues:
            self._offer_head(slot)

    def take(self, limit: int) -> list[Handout]:
        """Held entries that may go out now, at most `limit`; oldest first for each receiver."""
        if self._changed:
            self._changed = False
            self._takable.clear()
            for slot in self._queues:
                self._offer_head(slot)
        handouts: list[Handout] = []
        for receiver, heap in self._takable.items():
            while heap and len(handouts) < limit and receiver.ready:
                ordinal, slot = heappop(heap)
                if not self._is_head(ordinal, slot) or self.target(slot) is not receiver:
                    continue
                queue = self._queues[slot]
                messages = heappop(queue)[1]
                self.held -= 1
                self._hand_out(receiver, slot, messages)
                if queue:
                    self._offer_head(slot)
                else:
                    del self._queues[slot]
                handouts.append(Handout(receiver, ordinal, slot, messages))
        return handouts

    def settle(self, slot: int) -> bool:
        """Note the acknowledgement of one outstanding entry; return whether it lets a held entry go out."""
        left = self._outstanding[slot] - 1
        if left:
            self._outstanding[slot] = left
            return False
        del self._outstanding[slot]
        holder = self._holders.pop(slot)
        if slot not in self._queues or self._selector.owner(slot) is holder:
            return False
        return self._offer_head(slot)

    def take_back(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Hold outstanding entries, as (ordinal, slot, messages), for delivery before all later ones."""
        by_slot: dict[int, list[tuple[int, int]]] = {}
        for ordinal, slot, messages in entries:
            by_slot.setdefault(slot, []).append((ordinal, messages))
        for slot, returned in by_slot.items():
            self.held += len(returned)
            queue = self._queues.setdefault(slot, [])
            for entry in returned:
                heappush(queue, entry)
                self.settle(slot)
            self._offer_head(slot)

    def skip(self, handout: Handout) -> None:
        """Undo a handout whose entry was acknowledged before it went out."""
        handout.receiver.permits += handout.messages
        handout.receiver.settle(handout.messages)
        self.settle(handout.slot)

    def _hand_out(self, receiver: Receiver, slot: int, messages: int) -> None:
        receiver.charge(messages)
        self._holders[slot] = receiver
        self._outstanding[slot] = self._outstanding.get(slot, 0) + 1

    def _hold(self, ordinal: int, slot: int, messages: int) -> None:
        queue = self._queues.get(slot)
        if queue is None:
            self._queues[slot] = [(ordinal, messages)]
            self._offer_head(slot)
        else:
            heappush(queue, (ordinal, messages))
        self.held += 1

    def target(self, slot: int) -> Receiver | None:
        """The receiver of the slot's next entry: its owner, unless another receiver holds earlier ones."""
        if self._delayed and self._queues[slot][0][0] in self._delayed:
            return None
        owner = self._selector.owner(slot)
        return owner if owner is None or self._holders.get(slot, owner) is owner else None

    def _offer_head(self, slot: int) -> bool:
        target = self.target(slot)
        if target is None:
            return False
        heap = self._takable.setdefault(target, [])
        heappush(heap, (self._queues[slot][0][0], slot))
        if len(heap) > 2 * len(self._queues) + 64:
            heap[:] = dict.fromkeys(pair for pair in heap if self._is_head(*pair))
            heapify(heap)
        return True

    def _is_head(self, ordinal: int, slot: int) -> bool:
        queue = self._queues.get(slot)
        return queue is not None and queue[0][0] == ordinal
