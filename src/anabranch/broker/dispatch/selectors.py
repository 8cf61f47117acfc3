"""The owner of each slot, a hash of the key or a bucket, of a Key_Shared subscription, by its mode.

For example, `SplitRanges` over 100 slots: A alone has all of them. B joins and gets the lower half, 0-50, and
A keeps 51-100; C halves the largest range, the lowest of equal ones, and gets 0-25. B leaves: its range 26-50
goes to the next range above, that of A. `Buckets` with 8 buckets and receivers A and B gives 0-3 to A and 4-7
to B; if bucket 2 is closed, its entries wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from anabranch.broker.dispatch.receivers import Receiver
from anabranch.errors import ConsumerAssignError
from anabranch.model.assignment import bucket_owners
from anabranch.model.hashing import sticky_hash
from anabranch.model.ranges import HASH_SLOTS, HashRange

RING_POINTS = 100
"""Points of each receiver on the ring of AUTO_SPLIT; more spread the load more evenly."""


class Selector(Protocol):
    """Which receiver a slot belongs to, by the rules of one Key_Shared mode."""

    def owner(self, slot: int) -> Receiver | None: ...


class SlotOwners(NamedTuple):
    """The owners of all slots of a subscription, until its consumers change again."""

    selector: Selector
    readers: Collection[Receiver]
    """The receivers that own a slot."""
    closed: frozenset[int] = frozenset()
    """Slots that have no owner yet."""
    moves: int = 0
    """Slots that went from one receiver to another by the last change."""
    movable: bool = True
    """Whether relief may lend slots of a busy receiver to others."""


class SplitSelector(Selector, Protocol):
    """A selector of AUTO_SPLIT, which shares all slots among the receivers that join."""

    def join(self, receiver: Receiver) -> None: ...

    def leave(self, receiver: Receiver) -> None: ...


class AutoSplit:
    """A ring of points: a receiver that comes or goes moves only the hashes that must move."""

    def __init__(self, receivers: Iterable[Receiver] = ()) -> None:
        self._points: list[int] = []
        self._claims: dict[int, list[Receiver]] = {}
        self._known: dict[int, Receiver] = {}
        for receiver in receivers:
            self.join(receiver)

    def join(self, receiver: Receiver) -> None:
        self._known.clear()
        for point in _ring_points(receiver):
            claims = self._claims.setdefault(point, [])
            if not claims:
                insort(self._points, point)
            claims.append(receiver)
            # On a clash the lower name keeps the point, so the order of joining does not matter.
            claims.sort(key=lambda r: (r.name, r.id))

    def leave(self, receiver: Receiver) -> None:
        self._known.clear()
        for point in _ring_points(receiver):
            claims = self._claims[point]
            claims.remove(receiver)
            if not claims:
                del self._claims[point]
                del self._points[bisect_left(self._points, point)]

    def owner(self, slot: int) -> Receiver | None:
        receiver = self._known.get(slot)
        if receiver is None and self._points:
            at = bisect_left(self._points, slot)
            receiver = self._claims[self._points[at if at < len(self._points) else 0]][0]
            self._known[slot] = receiver
        return receiver


def _ring_points(receiver: Receiver) -> list[int]:
    points = (sticky_hash(f"{receiver.name}/{receiver.id}/{n}".encode()) for n in range(RING_POINTS))
    return list(dict.fromkeys(points))


class SplitRanges:
    """One range of slots for each receiver, as Pulsar without consistent hashing.

    A receiver that comes gets the lower half of the largest range, the lowest one of several. The range of a
    receiver that leaves goes to the next range above it, the last one to the range below.
    """

    def __init__(self, slots: int = HASH_SLOTS) -> None:
        self._slots = slots
        self._ends: list[int] = []
        """The last slot of each range, ascending."""
        self._owners: list[Receiver] = []

    def join(self, receiver: Receiver) -> None:
        """ConsumerAssignError if each slot has a receiver of its own."""
        if not self._ends:
            self._ends, self._owners = [self._slots], [receiver]
            return
        starts = [0, *self._ends]
        at = max(range(len(self._ends)), key=lambda n: (self._ends[n] - starts[n], -n))
        half = (self._ends[at] - starts[at]) >> 1
        if not half:
            raise ConsumerAssignError(f"{len(self._ends)} consumers have all ranges; close one of them first")
        self._ends.insert(at, self._ends[at] - half)
        self._owners.insert(at, receiver)

    def leave(self, receiver: Receiver) -> None:
        at = self._owners.index(receiver)
        del self._owners[at]
        # The neighbour of the last range takes over its end.
        del self._ends[at if at < len(self._owners) else max(at - 1, 0)]

    def owner(self, slot: int) -> Receiver | None:
        return self._owners[bisect_left(self._ends, slot)] if self._ends else None


class Sticky:
    """Each receiver named its hash ranges; entries of a hash outside all ranges wait."""

    def __init__(self) -> None:
        # A table of all slots: ranges come and go at the cost of their width, however many there are.
        self._owners: list[Receiver | None] = [None] * HASH_SLOTS

    def put(self, owner: Receiver | None, parts: Iterable[HashRange]) -> None:
        """Give these ranges to a receiver, or free them."""
        for part in parts:
            self._owners[part.start : part.end + 1] = [owner] * part.width

    def is_free(self, part: HashRange) -> bool:
        """Return whether no receiver has a slot of this range."""
        return self._owners[part.start : part.end + 1].count(None) == part.width

    def owner(self, slot: int) -> Receiver | None:
        return self._owners[slot]


class Buckets:
    """Receivers in the order of (name, id) get equal runs of buckets; entries of a closed bucket wait."""

    def __init__(
        self, bucket_count: int, receivers: Sequence[Receiver], closed: frozenset[int] = frozenset()
    ) -> None:
        ordered = sorted(receivers, key=lambda r: (r.name, r.id))
        self._owners: list[Receiver | None] = [*bucket_owners(bucket_count, ordered)]
        for slot in closed if ordered else ():
            self._owners[slot] = None
        self.readers = {owner for owner in self._owners if owner is not None}
        """The receivers with an open bucket."""

    def moved_from(self, before: Buckets) -> int:
        """How many buckets went from one receiver to another."""
        pairs = zip(before._owners, self._owners, strict=False)
        return sum(None not in pair and pair[0] is not pair[1] for pair in pairs)

    def owner(self, slot: int) -> Receiver | None:
        return self._owners[slot] if slot < len(self._owners) else None


def sticky_ranges(
    ranges: Sequence[tuple[int, int]], is_free: Callable[[HashRange], bool]
) -> tuple[HashRange, ...]:
    """Return the ranges a STICKY consumer asks for; ConsumerAssignError when they are bad or taken."""
    if not ranges:
        raise ConsumerAssignError("a sticky consumer must name its hash ranges")
    for start, end in ranges:
        if not 0 <= start <= end < HASH_SLOTS:
            raise ConsumerAssignError(f"hash range {start}-{end} is not within 0-{HASH_SLOTS - 1}")
    ordered = sorted(ranges)
    for (_, end), (start, _) in pairwise(ordered):
        if start <= end:
            raise ConsumerAssignError(f"the hash ranges of the consumer overlap at {start:04x}")
    made = tuple(HashRange(start, end) for start, end in ordered)
    for part in made:
        if not is_free(part):
            raise ConsumerAssignError(f"hash range {part} overlaps that of another consumer")
    return made


def bucket_boundaries(ranges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the split points of a bucket list that tiles the ring; ConsumerAssignError when it does not."""
    expected = 0
    for start, end in ranges:
        if start != expected or end < start or end >= HASH_SLOTS:
            raise ConsumerAssignError("bucket ranges must tile 0-65535 in ascending order without gaps")
        expected = end + 1
    if expected != HASH_SLOTS or ranges[0][1] < 1:
        raise ConsumerAssignError("bucket ranges must tile 0-65535, the first one holding at least 0 and 1")
    return tuple(start for start, _ in ranges[1:])
