"""The use of one served log, and whether a log may be unloaded: only its durable state then stays in memory.

A call that waits counts as a use until it ends, so no log is unloaded under a caller that goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class LogUse:
    """Values that a served log shares with its subscriptions; they hold no reference to the log."""

    __slots__ = ("calls", "splits", "used_s")

    def __init__(self, now_s: float) -> None:
        self.calls = 0
        """Calls that wait for the disk, the leader or a client and then go on with the log."""
        self.used_s = now_s
        """When the log was last looked up, or had a client."""
        self.splits: tuple[int, ...] = ()
        """Bucket boundaries of the segment; set when a client attaches."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Keep the log loaded inside the block."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1


class LogActivity(NamedTuple):
    """The uses of a log at one moment."""

    clients: int
    """Attached or waiting producers, and consumers."""
    calls: int
    working: bool
    """Whether a subscription delivers, reads or reports."""
    troubled: bool
    """Whether the log has troubles that operators should see."""
    closed: bool
    """Whether the log is being deleted or moves to another broker."""
    idle_s: float
    """Time since the last lookup or client."""


def may_unload(seen: LogActivity, idle_s: float) -> bool:
    """Whether nothing is lost if the log keeps only its durable state, after `idle_s` without a use."""
    if seen.closed or seen.clients or seen.calls or seen.working or seen.troubled:
        return False
    return seen.idle_s >= idle_s
