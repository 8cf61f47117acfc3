"""Routes a key hash to a segment of a layout.

A router is built once per layout and used once per message, so it holds only sorted arrays.
"""

from __future__ import annotations

from bisect import bisect_right

from anabranch.errors import LayoutError
from anabranch.model.layout import Layout, Segment


class Router:
    """Finds the active segment of a raw key hash in one layout."""

    __slots__ = ("_by_modulo", "_segments", "_starts", "layout")

    def __init__(self, layout: Layout) -> None:
        if not layout.active:
            raise LayoutError("a layout without active segments cannot route messages")
        self.layout = layout
        # Active classic topics are partitions, and a key must go to the same one as from a classic producer.
        self._by_modulo = all(segment.is_classic for segment in layout.active)
        self._segments = layout.active
        if self._by_modulo:
            self._segments = tuple(sorted(layout.active, key=lambda segment: segment.id))
        self._starts = [segment.range.start for segment in layout.active]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The active segments, for messages without a key."""
        return self._segments

    def segment_for(self, raw_hash: int) -> Segment:
        """The active segment that takes this hash."""
        if self._by_modulo:
            return self._segments[(raw_hash & 0x7FFFFFFF) % len(self._segments)]
        return self._segments[bisect_right(self._starts, raw_hash >> 16) - 1]
