"""Compares a layout with the logs of its active segments. Pure.

A log is sealed only while an operation is recorded, and created before its segment is visible (PIP-468: the
compare-and-set of the layout is the commit point). So without a recorded operation an active segment has a
log that accepts messages, unless a store or the metadata has lost a change.

Example: of the active segments 4, 5 and 6 the logs are found open, sealed and newly created. Then 5 needs a
successor, and the messages of 6 are lost: `compare` returns `sealed=(5,)` and `lost=(6,)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

LogState = Literal["created", "open", "sealed"]
"""The log before a request to create its segment: absent, accepting messages, or sealed."""


class Inconsistency(NamedTuple):
    """Active segments whose logs contradict the layout."""

    sealed: tuple[int, ...]
    """Segments whose logs are sealed. Each needs a successor, or its producers wait forever."""
    lost: tuple[int, ...]
    """Segments whose logs were gone and start empty."""


def compare(found: Mapping[int, LogState]) -> Inconsistency:
    """Compare the layout with `found`, the log state of each active segment. No operation may be recorded."""
    return Inconsistency(
        tuple(sorted(id_ for id_, state in found.items() if state == "sealed")),
        tuple(sorted(id_ for id_, state in found.items() if state == "created")),
    )
