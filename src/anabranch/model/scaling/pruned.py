"""Remembers the newest segments of a topic that retention removed.

A reader that stopped long ago may have read such a segment to its end; the stored final position tells
whether it did. This module does not know readers or where the memory is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.model.ranges import HashRange

PRUNED_MAX = 256
"""Pruned segments that a topic remembers, newest first."""


@dataclass(frozen=True, slots=True)
class PrunedSegment:
    """A segment that is no longer in the layout."""

    id: int
    range: HashRange
    children: tuple[int, ...]
    next_index: int
    """The index after its last message."""


def newest_of(pruned: Mapping[int, PrunedSegment]) -> dict[int, PrunedSegment]:
    """Return the segments that a topic still remembers, by id.

    A child is never forgotten before its parents.
    """
    return {id_: pruned[id_] for id_ in sorted(pruned)[-PRUNED_MAX:]}
