"""Who gets the next entry: the decisions of the Shared and Key_Shared read paths.

Pure: entries are ordinals, consumers are receivers with permits, and nothing here reads a log, writes to a
connection or waits. The subscription asks, carries the answer out and reports what came of it.

A *slot* is the unit whose order is kept: a hash of the key, or a bucket. A slot has at most one holder, the
receiver with entries of it that are not settled yet, and moves to another receiver only when it has none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from anabranch.errors import ConsumerAssignError
from anabranch.model.assignment import bucket_owners
from anabranch.model.hashing import sticky_hash
from anabranch.model.ranges import HASH_SLOTS, HashRange

RING_POINTS = 100
"""Points of each receiver on the ring of AUTO_SPLIT; more spread the load more evenly."""


class Channel(Protocol):
    """The way to a receiver; only whether it has room matters here."""

    @property
    def writable(self) -> bool: ...


class Receiver:
    """What dispatch knows of a consumer; permits and unacknowledged messages change with each entry."""

    __slots__ = (
        "blocked",
        "channel",
        "id",
        "name",
        "permits",
        "priority",
        "retired",
        "unacked",
        "unacked_max",
    )

    def __init__(
        self, name: str, number: int, channel: Channel, *, priority: int = 0, unacked_max: int = 2**62
    ) -> None:
        self.name = name
        self.id = number
        self.channel = channel
        self.priority = priority
        self.permits = 0
        """Messages the consumer still wants; negative after a batch that was larger than the rest."""
        self.unacked = 0
        self.unacked_max = unacked_max
        self.blocked = False
        """Too much is unacknowledged; lifted at half the limit, so that it does not flutter."""
        self.retired = False
        """It is another's turn: nothing more goes out, and the other waits for what is out."""

    @property
    def ready(self) -> bool:
        return self.permits > 0 and not self.blocked and not self.retired and self.channel.writable

    def charge(self, messages: int) -> None:
        """An entry with so many messages goes out."""
        self.permits -= messages
        self.unacked += messages
        if self.unacked >= self.unacked_max:
            self.blocked = True

    def settle(self, messages: int) -> None:
        """So many delivered messages are acknowledged, or taken back."""
        self.unacked -= messages
        if self.blocked and self.unacked <= self.unacked_max // 2:
            self.blocked = False


class RoundRobin:
    """Shared: runs of entries go round the ready receivers of the first priority level that has any."""

    def __init__(self) -> None:
        self._receivers: list[Receiver] = []
        self._last = -1

    def change(self, receivers: Iterable[Receiver]) -> None:
        """These are the receivers from now on; the turn goes on where it was, as well as it can."""
        last = self._receivers[self._last] if self._last >= 0 else None
        self._receivers = sorted(receivers, key=lambda r: r.priority)
        self._last = self._receivers.index(last) if last in self._receivers else -1

    def next(self) -> Receiver | None:
        """The receiver whose turn it is, or None when nobody is ready."""
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


class Selector(Protocol):
    """Which receiver a slot belongs to, by the rules of one Key_Shared mode."""

    def owner(self, slot: int) -> Receiver | None: ...


class AutoSplit:
    """A ring of points: a receiver that comes or goes moves only the hashes that must move."""

    def __init__(self, receivers: Iterable[Receiver] = ()) -> None:
        self._points: list[int] = []
        self._claims: dict[int, list[Receiver]] = {}
        self._members: dict[Receiver, None] = {}
        self._known: dict[int, Receiver] = {}
        self.change(receivers)

    def change(self, receivers: Iterable[Receiver]) -> None:
        """These are the receivers from now on; costs what the change is worth, not what there is."""
        wanted = dict.fromkeys(receivers)
        for receiver in [known for known in self._members if known not in wanted]:
            self._leave(receiver)
        for receiver in wanted:
            if receiver not in self._members:
                self._join(receiver)
        self._members = wanted
        self._known.clear()

    def _join(self, receiver: Receiver) -> None:
        for point in _ring_points(receiver):
            claims = self._claims.setdefault(point, [])
            if not claims:
                insort(self._points, point)
            claims.append(receiver)
            # On a clash the lower name keeps the point, so the order of joining does not matter.
            claims.sort(key=lambda r: (r.name, r.id))

    def _leave(self, receiver: Receiver) -> None:
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


class Sticky:
    """Each receiver named its hash ranges; a hash that nobody named waits."""

    def __init__(self, ranges: Iterable[tuple[HashRange, Receiver]]) -> None:
        ordered = sorted(ranges, key=lambda pair: pair[0].start)
        self._ranges = [pair[0] for pair in ordered]
        self._starts = [pair[0].start for pair in ordered]
        self._owners = [pair[1] for pair in ordered]

    def owner(self, slot: int) -> Receiver | None:
        at = bisect_right(self._starts, slot) - 1
        return self._owners[at] if at >= 0 and slot in self._ranges[at] else None


class Buckets:
    """Bucket i of N goes to one of k receivers in the order of (name, id), in equal runs of buckets.

    A closed bucket belongs to nobody, so that its entries wait.
    """

    def __init__(
        self, bucket_count: int, receivers: Sequence[Receiver], closed: frozenset[int] = frozenset()
    ) -> None:
        ordered = sorted(receivers, key=lambda r: (r.name, r.id))
        self._owners: list[Receiver | None] = [*bucket_owners(bucket_count, ordered)]
        for slot in closed if ordered else ():
            self._owners[slot] = None

    def moved_from(self, before: Buckets) -> int:
        """How many buckets went from one receiver to another."""
        pairs = zip(before._owners, self._owners, strict=False)
        return sum(None not in pair and pair[0] is not pair[1] for pair in pairs)

    def owner(self, slot: int) -> Receiver | None:
        return self._owners[slot] if slot < len(self._owners) else None


class Handout(NamedTuple):
    """A held entry may go out to this receiver now."""

    receiver: Receiver
    ordinal: int
    slot: int
    messages: int


class KeyedDispatch:
    """Key_Shared and bucket dispatch: each slot's entries one after another, to one receiver at a time.

    An entry that cannot go out at once is held behind the earlier ones of its slot while other slots go on.
    The caller bounds how far it reads ahead by looking at `held`.
    """

    def __init__(self) -> None:
        self.held = 0
        """Entries read but not given out."""
        self._selector: Selector = Sticky(())
        self._holders: dict[int, Receiver] = {}
        self._outstanding: dict[int, int] = {}
        self._queues: dict[int, deque[tuple[int, int]]] = {}
        self._delayed: set[int] = set()
        # Per receiver the first held entry of each slot that it may take. Stale pairs are skipped when met.
        self._takable: dict[Receiver, list[tuple[int, int]]] = {}

    def change(self, selector: Selector) -> None:
        """Slots belong as `selector` says from now on; a slot with a holder moves when it is settled."""
        self._selector = selector
        self._takable.clear()
        for slot in self._queues:
            self._offer_head(slot)

    @property
    def withheld(self) -> int:
        """Slots that wait for their former owner's acknowledgements before the next one gets them."""
        owner = self._selector.owner
        return sum(owner(slot) not in (None, holder) for slot, holder in self._holders.items())

    def clear(self) -> None:
        """Forget everything held and outstanding: the subscription starts to read elsewhere."""
        self.held = 0
        self._holders.clear()
        self._outstanding.clear()
        self._queues.clear()
        self._delayed.clear()
        self._takable.clear()

    def offer(self, ordinal: int, slot: int, messages: int) -> Receiver | None:
        """Take the next entry of the log: the receiver that gets it now, or None when it is held."""
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
        """A delayed entry may go out from now on."""
        self._delayed.discard(ordinal)
        if slot in self._queues:
            self._offer_head(slot)

    def take(self, limit: int) -> list[Handout]:
        """Held entries that may go out now, at most `limit`; oldest first for each receiver."""
        grants: list[Handout] = []
        for receiver, heap in self._takable.items():
            while heap and len(grants) < limit and receiver.ready:
                ordinal, slot = heappop(heap)
                if not self._is_head(ordinal, slot) or self._target(slot) is not receiver:
                    continue
                queue = self._queues[slot]
                messages = queue.popleft()[1]
                self.held -= 1
                self._hand_out(receiver, slot, messages)
                if queue:
                    self._offer_head(slot)
                else:
                    del self._queues[slot]
                grants.append(Handout(receiver, ordinal, slot, messages))
        return grants

    def settle(self, slot: int) -> bool:
        """One entry given out is acknowledged; whether a held entry may now go out that could not before."""
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
        """Entries given out, as (ordinal, slot, messages), are to be delivered again, before later ones."""
        by_slot: dict[int, list[tuple[int, int]]] = {}
        for ordinal, slot, messages in entries:
            by_slot.setdefault(slot, []).append((ordinal, messages))
        for slot, returned in by_slot.items():
            self.held += len(returned)
            self._queues[slot] = deque(sorted([*returned, *self._queues.get(slot, ())]))
            for _ in returned:
                self.settle(slot)
            self._offer_head(slot)

    def skip(self, grant: Handout) -> None:
        """The entry of a grant was acknowledged meanwhile and did not go out."""
        grant.receiver.permits += grant.messages
        grant.receiver.settle(grant.messages)
        self.settle(grant.slot)

    def _hand_out(self, receiver: Receiver, slot: int, messages: int) -> None:
        receiver.charge(messages)
        self._holders[slot] = receiver
        self._outstanding[slot] = self._outstanding.get(slot, 0) + 1

    def _hold(self, ordinal: int, slot: int, messages: int) -> None:
        queue = self._queues.get(slot)
        if queue is None:
            self._queues[slot] = deque(((ordinal, messages),))
            self._offer_head(slot)
        else:
            queue.append((ordinal, messages))
        self.held += 1

    def _target(self, slot: int) -> Receiver | None:
        """Who may take the slot's next entry: its owner, unless another still holds earlier ones."""
        if self._delayed and self._queues[slot][0][0] in self._delayed:
            return None
        owner = self._selector.owner(slot)
        return owner if owner is None or self._holders.get(slot, owner) is owner else None

    def _offer_head(self, slot: int) -> bool:
        target = self._target(slot)
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


def sticky_ranges(ranges: Sequence[tuple[int, int]], others: Iterable[HashRange]) -> tuple[HashRange, ...]:
    """The ranges a STICKY consumer asks for; ConsumerAssignError when they are bad or taken."""
    if not ranges:
        raise ConsumerAssignError("a sticky consumer must name its hash ranges")
    made: list[HashRange] = []
    taken = list(others)
    for start, end in ranges:
        if not 0 <= start <= end < HASH_SLOTS:
            raise ConsumerAssignError(f"hash range {start}-{end} is not within 0-{HASH_SLOTS - 1}")
        asked = HashRange(start, end)
        for other in (*made, *taken):
            if asked.overlaps(other):
                raise ConsumerAssignError(f"hash range {asked} overlaps {other}")
        made.append(asked)
    return tuple(made)


def bucket_boundaries(ranges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The split points of a bucket list that tiles the ring; ConsumerAssignError when it does not."""
    expected = 0
    for start, end in ranges:
        if start != expected or end < start or end >= HASH_SLOTS:
            raise ConsumerAssignError("bucket ranges must tile 0-65535 in ascending order without gaps")
        expected = end + 1
    if expected != HASH_SLOTS or ranges[0][1] < 1:
        raise ConsumerAssignError("bucket ranges must tile 0-65535, the first one holding at least 0 and 1")
    return tuple(start for start, _ in ranges[1:])


def active_consumer(receivers: Sequence[Receiver], partition: int) -> Receiver | None:
    """Failover: who reads. The lowest priority level, then the name; partitions spread over the names."""
    if not receivers:
        return None
    level = min(receiver.priority for receiver in receivers)
    candidates = sorted((r for r in receivers if r.priority == level), key=lambda r: (r.name, r.id))
    return candidates[max(partition, 0) % len(candidates)]
