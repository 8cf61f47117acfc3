"""A consumer as dispatch sees it, and the choice of the next consumer where keys do not matter.

For example, A and B have priority 0, C has 1. `Ranking` spreads partitions over the best priority: A is
active for partition 0, B for 1, A for 2. `RoundRobin` returns A, B, A, B...; while A and B have no permits it
returns C, and once A is ready again it returns A.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable
from itertools import count
from typing import Protocol


class ReceiverLink(Protocol):
    """The connection of a receiver; dispatch only asks whether it has room."""

    @property
    def writable(self) -> bool: ...


class Receiver:
    """A consumer as dispatch sees it; permits and unacknowledged messages change with each entry."""

    def __init__(
        self, name: str, number: int, link: ReceiverLink, *, priority: int = 0, unacked_max: int = 2**62
    ) -> None:
        self.name = name
        self.id = number
        self.link: ReceiverLink = link
        self.priority = priority
        self.permits = 0
        """Messages the consumer still wants; negative after a batch with more than it wanted."""
        self.window = 0
        """Most permits that it had at once."""
        self.unacked = 0
        self.unacked_max = unacked_max
        self.blocked = False
        """Too many messages are unacknowledged; lifted at half the limit, so that it does not flutter."""
        self.retired = False
        """Another consumer reads next: this one gets no more entries and only acknowledges those it has."""

    @property
    def ready(self) -> bool:
        return self.permits > 0 and not self.blocked and not self.retired and self.link.writable

    def grant(self, permits: int) -> None:
        """Let it have more messages."""
        self.permits += permits
        self.window = max(self.window, self.permits)

    @property
    def short(self) -> bool:
        """Whether it takes so little, or acknowledges so little, that it will soon get no more messages."""
        return self.permits <= self.window // 4 or self.unacked >= self.unacked_max // 2

    def limit(self, unacked_max: int) -> None:
        """Follow another limit of unacknowledged messages."""
        self.unacked_max = unacked_max
        self.blocked = self.unacked >= unacked_max

    def charge(self, messages: int) -> None:
        """Count an entry with this many messages as delivered."""
        self.permits -= messages
        self.unacked += messages
        if self.unacked >= self.unacked_max:
            self.blocked = True

    def settle(self, messages: int) -> None:
        """Count this many delivered messages as acknowledged, or as taken back."""
        self.unacked -= messages
        if self.blocked and self.unacked <= self.unacked_max // 2:
            self.blocked = False


_Rank = tuple[int, str, int, int, Receiver]


class Ranking:
    """Failover: the receivers by priority, name and id; only among equal ones arrival matters."""

    def __init__(self, receivers: Iterable[Receiver] = ()) -> None:
        self._ranked: list[_Rank] = []
        self._ranks: dict[Receiver, _Rank] = {}
        self._next_number = count().__next__
        for receiver in receivers:
            self.join(receiver)

    def join(self, receiver: Receiver) -> None:
        rank = receiver.priority, receiver.name, receiver.id, self._next_number(), receiver
        self._ranks[receiver] = rank
        insort(self._ranked, rank)

    def leave(self, receiver: Receiver) -> None:
        del self._ranked[bisect_left(self._ranked, self._ranks.pop(receiver))]

    def active(self, partition: int) -> Receiver | None:
        """Return the receiver of all entries; partitions are spread over those of the best priority."""
        if not self._ranked:
            return None
        best = bisect_right(self._ranked, self._ranked[0][0], key=lambda rank: rank[0])
        return self._ranked[max(partition, 0) % best][-1]


class RoundRobin:
    """Shared: runs of entries go round the ready receivers of the first priority level that has any."""

    def __init__(self) -> None:
        self._receivers: list[Receiver] = []
        self._last = -1
        self._changed: Collection[Receiver] | None = None

    def change(self, receivers: Collection[Receiver]) -> None:
        """Use these receivers from now on; the turn stays with its receiver if that one is still there.

        They are put in order with the next turn, so that many changes at once cost as much as one.
        """
        self._changed = receivers

    def _sort(self, receivers: Collection[Receiver]) -> None:
        last = self._receivers[self._last] if self._last >= 0 else None
        self._receivers = sorted(receivers, key=lambda r: r.priority)
        self._last = self._receivers.index(last) if last in receivers and last is not None else -1
        self._changed = None

    def next(self) -> Receiver | None:
        """Return the receiver whose turn it is, or None when no receiver is ready."""
        if self._changed is not None:
            self._sort(self._changed)
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
