"""Decides which active segment of a layout takes a key. This module does not know how layouts change.

Example: a topic has segments 0 (slots 0000-7fff) and 1 (8000-ffff). The key "alice" has the hash 0x4c518edd.
Its high half, 0x4c51, lies in segment 0. The low half, 0x8edd, picks the bucket and has no influence here.
The key "bob" (0xa85b7bf2) goes to segment 1.
"""

from __future__ import annotations

from bisect import bisect_right

from anabranch.errors import LayoutError
from anabranch.model.hashing import bucket_hash, segment_hash
from anabranch.model.layout import Layout, Segment


class Router:
    """Finds the active segment of a raw key hash in one layout."""

    __slots__ = ("_by_low_half", "_by_modulo", "_segments", "_starts", "layout")

    def __init__(self, layout: Layout) -> None:
        if not layout.active:
            raise LayoutError("a layout without active segments cannot route messages")
        self.layout = layout
        # Active classic topics are partitions. A key must go to the partition that a classic producer would
        # choose, or the key would lose its order while both kinds of producers are connected.
        self._by_modulo = all(segment.is_classic for segment in layout.active)
        self._by_low_half = layout.by_low_half
        self._segments = layout.active
        if self._by_modulo:
            self._segments = tuple(sorted(layout.active, key=lambda segment: segment.id))
        self._starts = [segment.range.start for segment in layout.active]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The active segments, for messages without a key."""
        return self._segments

    def segment_for(self, raw_hash: int) -> Segment:
        """Return the active segment that takes this hash."""
        if self._by_modulo:
            return self._segments[(raw_hash & 0x7FFFFFFF) % len(self._segments)]
        return self._segments[bisect_right(self._starts, self.slot_of(raw_hash)) - 1]

    def slot_of(self, raw_hash: int) -> int:
        """Return the slot of the ring that picks the segment of this hash."""
        return bucket_hash(raw_hash) if self._by_low_half else segment_hash(raw_hash)

    def moved_to(self, raw_hash: int, slot: int) -> int:
        """Return the hash moved to another slot of the ring; its other half is kept."""
        return raw_hash & 0xFFFF0000 | slot if self._by_low_half else slot << 16 | bucket_hash(raw_hash)
