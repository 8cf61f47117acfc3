"""Compares a layout with the logs of its active segments. Pure.

A log is sealed only while an operation is recorded, and created before its segment is visible. So without a
recorded operation an active segment has a log that takes messages, unless a store or the metadata has lost
a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

LogState = Literal["created", "open", "sealed"]
"""The log before a request to create its segment: absent, taking messages, or taking none."""


class Inconsistency(NamedTuple):
    """Active segments whose logs are not as the layout says."""

    sealed: tuple[int, ...]
    """Their logs take no messages any more; each needs a successor, or its producers wait for ever."""
    lost: tuple[int, ...]
    """Their logs were gone and begin empty."""


def compare(found: Mapping[int, LogState]) -> Inconsistency:
    """`found` has the state of the log of each active segment, when no operation is unfinished."""
    return Inconsistency(
        tuple(sorted(id_ for id_, state in found.items() if state == "sealed")),
        tuple(sorted(id_ for id_, state in found.items() if state == "created")),
    )
