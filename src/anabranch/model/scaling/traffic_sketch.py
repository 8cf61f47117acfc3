"""The load of one log by key hash, in constant memory: coarse cells of the ring, and the heaviest hashes.

The raw 32-bit hash of a key locates its load: the high half in the range of the segment, the low half among
the bucket hashes. The heaviest hashes are counted one by one (Misra and Gries): a hash with more than
1/HEAVY_MAX of the load is among them, and its count is too low by at most that share, never too high. Load
without a key has no place, because producers spread it evenly. This module knows neither time nor entries.

Example: HEAVY_MAX is 24, so any key with more than 1/24 (about 4%) of the load is found. A key with 30% of it
is reported with at least 25%.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.model.ranges import FULL, HashRange

CELLS: int = 256
"""Cells over the range of a segment, and as many over the bucket hashes."""
HEAVY_MAX: int = 24
"""Hashes that are counted one by one; up to twice as many between two prunings."""
HOT_MAX: int = 8
"""Heaviest hashes that a summary names."""
SHARE_MIN: float = 0.01
"""A hash with a smaller share is not hot."""
SAMPLES_MIN: float = 30.0
"""Fewer samples than this say nothing about where the load falls."""
KEY_BYTES_MAX: int = 64
"""Bytes that are kept of a sample key."""

UNIT_MAX: float = 1e9

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
        """Return the load by segment hash, for the range of the segment."""
        return self._weights(whole, self.ring, [(hot.hash >> 16, hot.share) for hot in self.hot])

    def bucket_weights(self) -> WeightedCells:
        """Return the load by bucket hash."""
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


class TrafficSketch:
    """The load of one log by place; older load counts less after each `decay`."""

    __slots__ = ("_buckets", "_heavy", "_keyless", "_keys", "_ring", "_total", "_unit", "_whole", "samples")

    def __init__(self, whole: HashRange = FULL) -> None:
        self._whole = whole
        self._ring = array("f", bytes(4 * min(CELLS, whole.width)))
        self._buckets = array("f", bytes(4 * CELLS))
        self._heavy: dict[int, float] = {}
        self._keys: dict[int, bytes] = {}
        self._keyless = 0.0
        self._total = 0.0
        self._unit = 1.0
        """All counts are in this unit, which grows, so that a decay need not touch them."""
        self.samples = 0.0
        """Number of additions, decayed."""

    @property
    def total(self) -> float:
        """All load, decayed."""
        return self._total / self._unit

    def add(self, raw: int, weight: float, key: bytes) -> None:
        """Add load of the key with this raw hash; a hash beyond the range counts as load without a key."""
        whole = self._whole
        place = (raw >> 16) - whole.start
        if not 0 <= place < whole.width:
            self.add_keyless(weight)
            return
        counted = weight * self._unit
        self.samples += 1
        self._total += counted
        self._ring[place * len(self._ring) // whole.width] += counted
        self._buckets[(raw & 0xFFFF) * CELLS >> 16] += counted
        heavy = self._heavy
        if raw in heavy:
            heavy[raw] += counted
        else:
            heavy[raw] = counted
            self._keys[raw] = key[:KEY_BYTES_MAX]
            if len(heavy) > 2 * HEAVY_MAX:
                self._prune()

    def _prune(self) -> None:
        """Subtract the same amount from every count, so that only the heaviest hashes are left."""
        # More than HEAVY_MAX hashes lose this amount each, so all prunings together take at most 1/HEAVY_MAX
        # of the load from any one count.
        least = sorted(self._heavy.values(), reverse=True)[HEAVY_MAX]
        self._heavy = {raw: count - least for raw, count in self._heavy.items() if count > least}
        self._keys = {raw: self._keys[raw] for raw in self._heavy}

    def add_keyless(self, weight: float) -> None:
        """Add load that has no place."""
        self.samples += 1
        self._total += weight * self._unit
        self._keyless += weight * self._unit

    def decay(self, factor: float) -> None:
        """Multiply the weight of all load so far by `factor`."""
        self.samples *= factor
        self._unit /= factor
        if self._unit > UNIT_MAX:
            self._rescale(1 / self._unit)

    def _rescale(self, by: float) -> None:
        for cells in (self._ring, self._buckets):
            for index, weight in enumerate(cells):
                cells[index] = weight * by
        self._heavy = {raw: count * by for raw, count in self._heavy.items()}
        self._keyless *= by
        self._total *= by
        self._unit = 1.0

    def hottest(self, most: int = HOT_MAX) -> tuple[HotHash, ...]:
        """Return the heaviest hashes, the heaviest first, with their proven shares."""
        if self.samples < SAMPLES_MIN or not self._total:
            return ()
        shares = ((count / self._total, raw) for raw, count in self._heavy.items())
        hot = sorted((-share, raw) for share, raw in shares if share >= SHARE_MIN)
        return tuple(HotHash(raw, -share, self._keys[raw]) for share, raw in hot[:most])

    def summary(self) -> TrafficSummary:
        """Return the load by place; `NO_TRAFFIC` while there are too few samples."""
        if self.samples < SAMPLES_MIN or not self._total:
            return NO_TRAFFIC
        ring, buckets = self._ring[:], self._buckets[:]
        hot, whole = self.hottest(), self._whole
        for one in hot:
            counted = one.share * self._total
            ring[((one.hash >> 16) - whole.start) * len(ring) // whole.width] -= counted
            buckets[(one.hash & 0xFFFF) * CELLS >> 16] -= counted
        scale = _PARTS / self._total
        return TrafficSummary(
            tuple(max(0, round(weight * scale)) for weight in ring),
            tuple(max(0, round(weight * scale)) for weight in buckets),
            round(self._keyless * scale),
            hot,
        )
