"""Relief of the busy consumers of a keyed subscription: looks for them now and then, and explains moves."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from itertools import islice

from anabranch.broker.dispatch.keyed import KeyedDispatch
from anabranch.broker.dispatch.receivers import Receiver
from anabranch.broker.dispatch.relief import AFTER_MS, SEEN_MAX, Relief, WaitingSlot
from anabranch.broker.dispatch.selectors import Selector
from anabranch.broker.serving.delivery.read_path import ReadPath

_log = logging.getLogger(__name__)

LOOK_MS = 1000
"""Time between two looks at the consumers."""

TOLD_MAX = 3
"""Moves that are explained by name."""


class Relieving:
    """Stands between the selector of a subscription and its dispatch, and moves slots."""

    def __init__(self, path: ReadPath, dispatch: KeyedDispatch) -> None:
        self._path = path
        self._dispatch = dispatch
        self._relief: Relief | None = None
        self._next_ms = 0

    def over(self, selector: Selector) -> Selector:
        """Return a selector over this one, by which slots may move; at first all are with their owners."""
        if not self._path.keyed.relieves:
            return selector
        if self._relief is None:
            self._relief = Relief(selector)
        self._relief.change(selector)
        return self._relief

    @property
    def explained(self) -> list[str]:
        """The slots that are away from their owners, in words."""
        if self._relief is None or not len(self._relief):
            return []
        told = [str(move) for move in islice(self._relief.moves, TOLD_MAX)]
        more = len(self._relief) - len(told)
        if not more:
            return told
        are = "slot is" if more == 1 else "slots are"
        return [*told, f"{more} more {are} away from busy consumers"]

    def wake_ms(self, consumers: Collection[Receiver]) -> int | None:
        """When the consumers must be looked at; None while no slot can move."""
        return self._next_ms if self._matters(consumers) else None

    def _matters(self, consumers: Collection[Receiver]) -> bool:
        if self._relief is None or len(consumers) < 2:
            return False
        waits = self._dispatch.waiting and not all(consumer.ready for consumer in consumers)
        return bool(waits) or len(self._relief) > 0

    def turn(self, consumers: Collection[Receiver], now_ms: int) -> bool:
        """Move slots if it is time to; whether an entry may go out because of it."""
        relief, dispatch = self._relief, self._dispatch
        if relief is None or 0 < self._next_ms - now_ms <= LOOK_MS or not self._matters(consumers):
            return False
        self._next_ms = now_ms + LOOK_MS
        waiting = list(self._waiting())
        busy = {one.receiver for one in waiting if now_ms - one.since_ms >= AFTER_MS}
        back = relief.give_back(busy, dispatch, now_ms)
        moves = relief.relieve(waiting, consumers, now_ms)
        for slot in (*back, *(move.slot for move in moves)):
            dispatch.moved(slot)
        self._path.counters.relief_moves += len(back) + len(moves)
        for move in moves[:1]:
            name, log = self._path.cursor.name, self._path.source.log.name
            _log.info("%s: subscription %s: %s (%d more like it)", log, name, move, len(moves) - 1)
        return bool(back or moves)

    def _waiting(self) -> Iterator[WaitingSlot]:
        """Return the slots that wait for consumers which take nothing; first those with overdue entries."""
        dispatch = self._dispatch
        for slot, (_, since_ms) in islice(dispatch.overdue.items(), SEEN_MAX):
            receiver = dispatch.outstanding_at(slot)
            if receiver is not None and not receiver.ready:
                # It was delivered long before it was found overdue.
                yield WaitingSlot(slot, receiver, since_ms - AFTER_MS, idle=False)
        for slot in islice(dispatch.lanes, SEEN_MAX):
            lane, target = dispatch.lanes.get(slot), dispatch.target(slot)
            if lane is not None and lane.head >= 0 and target is not None and not target.ready:
                yield WaitingSlot(slot, target, lane.since_ms, dispatch.is_idle(slot))
