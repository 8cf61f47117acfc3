"""Entries that wait for their delivery time, in packed arrays of about 16 bytes an entry.

Most entries lie in bins, each a range of times. A bin is not sorted until its time is near; then it becomes
the near heap, which is exact to the millisecond. No step costs more than one bin, however many entries wait.

For example, with bins of 2 entries, times 50, 10 and 40 are added. The third makes the heap too large: it is
sorted, 10 stays near, and 40 and 50 become a bin from 40 on. `pop_due(30, 9)` returns 10, and the bin becomes
the near heap.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from heapq import heappop, heappush
from typing import Final, NamedTuple

BIN_ENTRIES: Final = 2048
"""Most entries of a bin; to split one takes about a millisecond."""

_SLOT_BITS: Final = 17
_SLOT_MASK: Final = 2**_SLOT_BITS - 1


class Delayed(NamedTuple):
    """An entry that may go out at `at_ms`, in wall time."""

    at_ms: int
    ordinal: int
    slot: int


_Pair = tuple[int, int]
"""A time, and an ordinal packed with its slot; pairs sort by time, then by ordinal."""


class _Bin:
    """Pairs in any order."""

    __slots__ = ("items", "times")

    def __init__(self, pairs: list[_Pair]) -> None:
        self.times = array("q", (at for at, _ in pairs))
        self.items = array("q", (item for _, item in pairs))

    def __len__(self) -> int:
        return len(self.times)

    def add(self, pair: _Pair) -> None:
        self.times.append(pair[0])
        self.items.append(pair[1])

    def sorted(self) -> list[_Pair]:
        return sorted(zip(self.times, self.items, strict=True))


class Delays:
    """A queue of entries by delivery time."""

    def __init__(self, bin_entries: int = BIN_ENTRIES) -> None:
        self._bin_entries = bin_entries
        self._count = 0
        self._near: list[_Pair] = []
        """Heap of the pairs before all bins; empty only when no entry waits."""
        self._bins: list[_Bin] = []
        self._firsts: list[_Pair] = []
        """The first pair that may lie in each bin."""
        self._top: _Pair = (0, 0)
        """The latest pair in the bins."""

    def __len__(self) -> int:
        return self._count

    @property
    def next_ms(self) -> int | None:
        """The delivery time of the next entry."""
        return self._near[0][0] if self._near else None

    def clear(self) -> None:
        """Forget all entries."""
        self._count = 0
        self._near.clear()
        self._bins.clear()
        self._firsts.clear()

    def add(self, at_ms: int, ordinal: int, slot: int = 0) -> None:
        """Let an entry wait until `at_ms`."""
        pair = at_ms, ordinal << _SLOT_BITS | slot
        self._count += 1
        if self._firsts and pair >= self._firsts[0]:
            self._add_to_bins(pair)
            return
        heappush(self._near, pair)
        if len(self._near) > self._bin_entries:
            # A sorted list is a heap.
            self._near.sort()
            half = len(self._near) // 2
            moved = self._near[half:]
            del self._near[half:]
            if not self._bins:
                self._top = moved[-1]
            self._put(0, 0, moved)

    def pop_due(self, now_ms: int, limit: int) -> list[Delayed]:
        """Take the entries whose time has come, at most `limit`, in the order of their times."""
        due: list[Delayed] = []
        while self._near and self._near[0][0] <= now_ms and len(due) < limit:
            at_ms, item = heappop(self._near)
            due.append(Delayed(at_ms, item >> _SLOT_BITS, item & _SLOT_MASK))
            if not self._near and self._bins:
                self._near = self._bins.pop(0).sorted()
                del self._firsts[0]
        self._count -= len(due)
        return due

    def _add_to_bins(self, pair: _Pair) -> None:
        bins = self._bins
        if pair >= self._top:
            # Entries of one fixed delay arrive in the order of their times and fill bin after bin.
            self._top = pair
            if len(bins[-1]) >= self._bin_entries:
                self._put(len(bins), len(bins), [pair])
            else:
                bins[-1].add(pair)
            return
        at = bisect_right(self._firsts, pair) - 1
        bins[at].add(pair)
        if len(bins[at]) > self._bin_entries:
            pairs = bins[at].sorted()
            half = len(pairs) // 2
            self._put(at, at + 1, pairs[:half], pairs[half:])

    def _put(self, start: int, end: int, *parts: list[_Pair]) -> None:
        """Put bins in the place of those from `start` to before `end`."""
        self._bins[start:end] = [_Bin(pairs) for pairs in parts]
        self._firsts[start:end] = [pairs[0] for pairs in parts]
