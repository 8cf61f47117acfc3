"""Relief of a busy receiver: its other slots with nothing outstanding go to receivers with room, for a while.

A receiver is busy when it takes nothing and one of its slots has waited for a while. The override lies over
any selector; dispatch moves a slot only when its former receiver has settled it, so order is not at risk.
Moves are few, because a moved slot costs its new receiver the state of its keys. Time is an argument.

For example, A takes nothing, and its slots 3, 4 and 5 wait since 0, 1,000 and 2,000 ms; 4 and 5 are idle. At
4,999 ms nothing moves. At 7,000 ms slot 3 is taken for the cause, and 4 and 5 go to the receiver with most
permits: B with 100, which counts as 50 after the first move, then C with 80. At most 8 slots move within a
second, and a slot that moved stays where it is for 10 seconds; then it goes back if A is ready and the slot
is idle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.selectors import Selector

AFTER_MS: Final = 5000
"""A slot that waits this long for its receiver is stuck."""

MOVES_MAX: Final = 8
"""Most moves of a subscription within `PERIOD_MS`."""

PERIOD_MS: Final = 1000

REST_MS: Final = 10_000
"""A slot that moved stays at least this long."""

SEEN_MAX: Final = 512
"""Most lanes that one round looks at, the oldest first."""


class WaitingSlot(NamedTuple):
    """A slot that waits for a receiver which takes nothing now."""

    slot: int
    receiver: Receiver
    since_ms: int
    idle: bool
    """Whether nothing of the slot is outstanding, so that another receiver may take it."""


@dataclass(frozen=True, slots=True)
class Move:
    """A slot that went from its owner to a receiver with room, because another slot of the owner is stuck."""

    slot: int
    giver: Receiver
    taker: Receiver
    stuck: int
    at_ms: int

    def __str__(self) -> str:
        return (
            f"slot {self.slot} goes to {self.taker.name} for a while, because its consumer "
            f"{self.giver.name} is busy with slot {self.stuck}"
        )


class SlotState(Protocol):
    """The knowledge of dispatch about slots."""

    def is_idle(self, slot: int) -> bool:
        """Return whether nothing of a slot is outstanding."""


class Relief:
    """A selector over another one, with the slots that busy receivers gave away."""

    def __init__(self, inner: Selector) -> None:
        self._inner = inner
        self._moves: dict[int, Move] = {}
        self._rests: dict[int, int] = {}
        """When each slot moved last, as far as it may not move again yet."""
        self._recent: list[int] = []
        """Times of the last moves."""
        self.count = 0
        """Moves so far; the number only grows."""

    @property
    def moves(self) -> Iterable[Move]:
        """The slots that are away from their owners."""
        return self._moves.values()

    def __len__(self) -> int:
        return len(self._moves)

    def owner(self, slot: int) -> Receiver | None:
        move = self._moves.get(slot)
        return self._inner.owner(slot) if move is None else move.taker

    def change(self, inner: Selector) -> None:
        """Lie over this selector from now on; every slot belongs to its owner again."""
        self._inner = inner
        self._moves.clear()

    def relieve(self, waiting: Iterable[WaitingSlot], takers: Iterable[Receiver], now_ms: int) -> list[Move]:
        """Move slots away from busy receivers, as far as the rate allows; returns the moves."""
        stuck: dict[Receiver, int] = {}
        movable: list[WaitingSlot] = []
        for one in waiting:
            if now_ms - one.since_ms < AFTER_MS:
                continue
            if one.receiver not in stuck:
                # The oldest one is the cause; a receiver that waits for nothing else gives nothing away.
                stuck[one.receiver] = one.slot
            elif one.idle:
                movable.append(one)
        room = {taker: taker.permits for taker in takers if taker.ready}
        made: list[Move] = []
        for one in movable:
            if not room or not self._may_move(one.slot, now_ms):
                continue
            taker = max(room, key=lambda each: (room[each], each.name, each.id))
            room[taker] //= 2
            move = Move(one.slot, one.receiver, taker, stuck[one.receiver], now_ms)
            self._moves[one.slot] = move
            self._moved(one.slot, now_ms)
            made.append(move)
        return made

    def give_back(self, busy: Iterable[Receiver], state: SlotState, now_ms: int) -> list[int]:
        """Return slots to owners that have room again and are not busy; returns the slots."""
        still = set(busy)
        back: list[int] = []
        for move in list(self._moves.values()):
            free = move.giver.ready and move.giver not in still and state.is_idle(move.slot)
            if free and self._may_move(move.slot, now_ms):
                del self._moves[move.slot]
                self._moved(move.slot, now_ms)
                back.append(move.slot)
        return back

    def _may_move(self, slot: int, now_ms: int) -> bool:
        self._recent = [at for at in self._recent if 0 <= now_ms - at < PERIOD_MS]
        moved_ms = self._rests.get(slot)
        rests = moved_ms is not None and 0 <= now_ms - moved_ms < REST_MS
        return not rests and len(self._recent) < MOVES_MAX

    def _moved(self, slot: int, now_ms: int) -> None:
        self.count += 1
        self._recent.append(now_ms)
        self._rests[slot] = now_ms
        if len(self._rests) > 4 * MOVES_MAX * REST_MS // PERIOD_MS:
            self._rests = {slot: at for slot, at in self._rests.items() if 0 <= now_ms - at < REST_MS}
