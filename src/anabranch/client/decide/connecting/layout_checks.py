"""Which layouts a client believes. Pure.

A broker that is hostile or broken may send any numbers. A layout that passes has a bounded size, routes every
key to one segment, and lets readers follow parents to children without a circle.

Example: active segments with the slots 0 to 32767 and 32768 to 65535 pass. If the second begins at 40000, no
segment takes the slots in between, and the fault is "active segment 2 begins at slot 40000, not at 32768".
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.model.hashing import check_bucket_splits
from anabranch.model.layout import Segment
from anabranch.model.ranges import HASH_SLOTS

SEGMENTS_MAX = 16_384
"""Most segments of a topic; a queue consumer subscribes to each."""


ID_MAX = 2**63 - 1
"""Highest segment id that a message id can hold."""


def fault_of_layout(segments: Mapping[int, Segment]) -> str | None:
    """Return why a layout cannot be true; None if a client may use it."""
    if max(segments, default=0) > ID_MAX:
        return f"segment ids end at {ID_MAX}"
    for id_, segment in segments.items():
        if any(parent >= id_ for parent in segment.parents):
            return f"segment {id_} is older than its parents"
        if any(child <= id_ for child in segment.children):
            return f"segment {id_} is newer than its children"
        fault = check_bucket_splits(segment.bucket_splits)
        if fault is not None:
            return f"segment {id_}: {fault}"
    active = [segment for segment in segments.values() if segment.active]
    # The ranges of active classic topics mean nothing: a key finds its partition by another rule.
    return None if any(segment.is_classic for segment in active) else _fault_of_tiling(active)


def _fault_of_tiling(active: list[Segment]) -> str | None:
    expected = 0
    for segment in sorted(active, key=lambda segment: segment.range):
        if segment.range.start != expected:
            return f"active segment {segment.id} begins at slot {segment.range.start}, not at {expected}"
        expected = segment.range.end + 1
    return None if expected in (0, HASH_SLOTS) else f"no active segment takes the slots from {expected} on"
