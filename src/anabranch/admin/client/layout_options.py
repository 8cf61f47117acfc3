"""Options of the methods of admin clients that change the layout of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class SplitOptions(TypedDict, total=False):
    """Options of a split; without any, the segment is cut in the middle."""

    points: Sequence[int]
    """The first hash of each part but the first."""
    parts: int | None
    by_traffic: bool
    """Whether parts have equal loads instead of equal widths."""
    timeout: float | None


class RebucketOptions(TypedDict, total=False):
    """Options of a change of buckets: their number, or their boundaries."""

    bucket_count: int | None
    boundaries: Sequence[int]
    by_traffic: bool
    """Whether buckets have equal loads instead of equal widths."""
    timeout: float | None
