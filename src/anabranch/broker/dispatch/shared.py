"""Shared subscriptions: the next entry goes to any ready consumer, in turn."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.broker.dispatch.receivers import Receiver


class RoundRobin:
    """Shared: runs of entries go round the ready receivers of the first priority level that has any."""

    def __init__(self) -> None:
        self._receivers: list[Receiver] = []
        self._last = -1

    def change(self, receivers: Iterable[Receiver]) -> None:
        """Use these receivers from now on; the turn stays with its receiver if that one is still there."""
        last = self._receivers[self._last] if self._last >= 0 else None
        self._receivers = sorted(receivers, key=lambda r: r.priority)
        self._last = self._receivers.index(last) if last in self._receivers else -1

    def next(self) -> Receiver | None:
        """The receiver whose turn it is, or None when no receiver is ready."""
        receivers = self._receivers
        count = len(receivers)
        best: Receiver | None = None
        best_at = -1
        for step in range(1, count + 1):
            at = (self._last + step) % count
            receiver = receivers[at]
            if receiver.ready and (best is None or receiver.priority < best.priority):
                best, best_at = receiver, at
                if receiver.priority == receivers[0].priority:
                    break
        if best is not None:
            self._last = best_at
        return best
