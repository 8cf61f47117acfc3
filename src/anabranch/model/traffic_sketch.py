"""The load of one log by key hash, in constant memory: coarse cells of the ring, and the heaviest hashes.

The raw 32-bit hash of a key locates its load: the high half in the range of the segment, the low half among
the bucket hashes. The heaviest hashes are counted one by one (Space-Saving): a hash with more than
1/HEAVY_MAX of the load is among them, and the part of its count that may belong to others is known. Load
without a key has no place, because producers spread it evenly. This module knows neither time nor entries.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.model.ranges import FULL, HashRange

CELLS: int = 256
"""Cells over the range of a segment, and as many over the bucket hashes."""
HEAVY_MAX: int = 32
"""Hashes that are counted one by one."""
HOT_MAX: int = 8
"""Heaviest hashes that a summary names."""
SHARE_MIN: float = 0.01
"""A hash with a smaller share is not hot."""
SAMPLES_MIN: float = 30.0
"""Fewer samples than this say nothing about the places of the load."""
KEY_BYTES_MAX: int = 64
"""Bytes that are kept of a sample key."""

_PARTS = 100_000
"""A summary gives weights in this fraction of the whole load."""

WeightedCells = tuple[tuple[HashRange, float], ...]


class HotHash(NamedTuple):
    """A key hash that takes a large share of the load."""

    hash: int
    """The raw hash: the high 16 bits choose the segment, the low 16 the bucket."""
    share: float
    """Its share of the load, from 0 to 1; the true share is not smaller."""
    key: bytes
    """A key with that hash, cut off after `KEY_BYTES_MAX` bytes."""

    @property
    def shown_key(self) -> str:
        return self.key.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    """The load of one log by place, small enough for a load report; weights are fractions of `_PARTS`."""

    ring: tuple[int, ...] = ()
    """Weight of each cell of the segment's range, without the hot hashes; empty if not known."""
    buckets: tuple[int, ...] = ()
    """Weight of each cell of the bucket hashes, without the hot hashes."""
    keyless: int = 0
    """Weight without a key, which every split and every bucket shares evenly."""
    hot: tuple[HotHash, ...] = ()
    """The heaviest hashes, the heaviest first."""

    def ring_weights(self, whole: HashRange) -> WeightedCells:
        """The load by segment hash, for the range of the segment."""
        return self._weights(whole, self.ring, [(hot.hash >> 16, hot.share) for hot in self.hot])

    def bucket_weights(self) -> WeightedCells:
        """The load by bucket hash."""
        return self._weights(FULL, self.buckets, [(hot.hash & 0xFFFF, hot.share) for hot in self.hot])

    def _weights(
        self, whole: HashRange, cells: Sequence[int], hot: Iterable[tuple[int, float]]
    ) -> WeightedCells:
        if not cells:
            return ()
        parts = whole.parts(min(len(cells), whole.width))
        found = [(part, float(weight)) for part, weight in zip(parts, cells, strict=False) if weight]
        if self.keyless:
            found.append((whole, float(self.keyless)))
        found += [(HashRange(slot, slot), share * _PARTS) for slot, share in hot if slot in whole]
        return tuple(found)


NO_TRAFFIC = TrafficSummary()


class _Counter:
    __slots__ = ("count", "error", "key")

    def __init__(self, count: float, error: float, key: bytes) -> None:
        self.count = count
        self.error = error
        """The part of the count that belongs to hashes that this one replaced."""
        self.key = key


class TrafficSketch:
    """The load of one log by place; older load counts less after each `decay`."""

    __slots__ = ("_buckets", "_cells", "_heavy", "_ring", "_whole", "keyless", "samples", "total")

    def __init__(self, whole: HashRange = FULL) -> None:
        self._whole = whole
        self._cells = min(CELLS, whole.width)
        self._ring = array("d", bytes(8 * self._cells))
        self._buckets = array("d", bytes(8 * CELLS))
        self._heavy: dict[int, _Counter] = {}
        self.keyless = 0.0
        self.samples = 0.0
        """Number of additions, decayed."""
        self.total = 0.0

    def add(self, raw: int, weight: float, key: bytes) -> None:
        """Add load of the key with this raw hash; a hash beyond the range counts as load without a key."""
        whole = self._whole
        place = (raw >> 16) - whole.start
        if not 0 <= place < whole.width:
            self.add_keyless(weight)
            return
        self.samples += 1
        self.total += weight
        self._ring[place * self._cells // whole.width] += weight
        self._buckets[(raw & 0xFFFF) * CELLS >> 16] += weight
        heavy = self._heavy
        found = heavy.get(raw)
        if found is not None:
            found.count += weight
        elif len(heavy) < HEAVY_MAX:
            heavy[raw] = _Counter(weight, 0.0, key[:KEY_BYTES_MAX])
        else:
            least = min(heavy, key=lambda known: heavy[known].count)
            error = heavy.pop(least).count
            heavy[raw] = _Counter(error + weight, error, key[:KEY_BYTES_MAX])

    def add_keyless(self, weight: float) -> None:
        """Add load that has no place."""
        self.samples += 1
        self.total += weight
        self.keyless += weight

    def decay(self, factor: float) -> None:
        """Let all load so far count `factor` of what it counted."""
        for cells in (self._ring, self._buckets):
            for index, weight in enumerate(cells):
                if weight:
                    cells[index] = weight * factor
        for counter in self._heavy.values():
            counter.count *= factor
            counter.error *= factor
        self.keyless *= factor
        self.samples *= factor
        self.total *= factor

    def hottest(self, most: int = HOT_MAX) -> tuple[HotHash, ...]:
        """The heaviest hashes, the heaviest first, with their proven shares."""
        if self.samples < SAMPLES_MIN or not self.total:
            return ()
        sure = [
            HotHash(raw, (counter.count - counter.error) / self.total, counter.key)
            for raw, counter in self._heavy.items()
        ]
        hot = sorted((one for one in sure if one.share >= SHARE_MIN), key=lambda one: (-one.share, one.hash))
        return tuple(hot[:most])

    def summary(self) -> TrafficSummary:
        """The load by place; `NO_TRAFFIC` while there are too few samples."""
        if self.samples < SAMPLES_MIN or not self.total:
            return NO_TRAFFIC
        ring, buckets = self._ring[:], self._buckets[:]
        hot, whole = self.hottest(), self._whole
        for one in hot:
            sure = one.share * self.total
            ring[((one.hash >> 16) - whole.start) * self._cells // whole.width] -= sure
            buckets[(one.hash & 0xFFFF) * CELLS >> 16] -= sure
        scale = _PARTS / self.total
        return TrafficSummary(
            tuple(max(0, round(weight * scale)) for weight in ring),
            tuple(max(0, round(weight * scale)) for weight in buckets),
            round(self.keyless * scale),
            hot,
        )
