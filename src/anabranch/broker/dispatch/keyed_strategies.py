"""Strategies of delivery by key or bucket: how far a subscription reads past slots that are stuck.

For example, 12,000 entries of one key wait. `ByWindow` has room for 10,000 - 12,000 = -2,000 more, so nothing
is read until 2,001 of them went out. `ByLanes` counts one lane of 50,000 and about 25,000 bytes of its 32
MiB, so reading goes on; with 50,000 stuck keys it stops too, and says that lane_max is reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anabranch.broker.dispatch.lanes import Lanes
from anabranch.config.lanes import LaneConfig

WINDOW_ENTRIES = 10_000


class KeyedStrategy(Protocol):
    """One strategy. The mechanism of lanes is the same for all of them."""

    @property
    def after_ms(self) -> int:
        """A lane is shown once it has existed for this long."""

    @property
    def unacked_ms(self) -> int:
        """An entry that is not acknowledged for this long gives its slot a lane; 0 is never."""

    @property
    def lasts(self) -> bool:
        """Whether the slots with lanes are remembered when the subscription stops."""

    @property
    def note_entries(self) -> int:
        """Entries that a restart may read again; a note of the lanes is renewed when it would be more."""

    @property
    def relieves(self) -> bool:
        """Whether other slots of a busy consumer go to consumers with room."""

    @property
    def by_ranges(self) -> bool:
        """Whether each consumer of AUTO_SPLIT gets one range of slots, instead of points on a ring."""

    def room(self, lanes: Lanes) -> int:
        """How many more entries may be read now, 0 or less at a bound."""

    def bound(self, lanes: Lanes) -> str | None:
        """Return the bound at which reading stops, in words; None if it goes on."""


@dataclass(frozen=True, slots=True)
class ByLanes:
    """Read on without end; only the number and the memory of lanes are bounded."""

    lanes_max: int = 50_000
    memory_bytes_max: int = 32 * 2**20
    after_ms: int = 1000
    unacked_ms: int = 30_000
    lasts: bool = True
    relieves: bool = True
    note_entries: int = 10_000
    by_ranges: bool = False

    def room(self, lanes: Lanes) -> int:
        return 0 if self.bound(lanes) else 2**31

    def bound(self, lanes: Lanes) -> str | None:
        if len(lanes) >= self.lanes_max:
            return f"{len(lanes)} keys wait in lanes, and lane_max allows no more"
        if lanes.memory_bytes >= self.memory_bytes_max:
            size, allowed = lanes.memory_bytes, self.memory_bytes_max
            return f"lanes take {size} bytes of memory, and lane_memory_bytes allows {allowed}"
        return None


@dataclass(frozen=True, slots=True)
class ByWindow:
    """Stop after a fixed number of waiting entries."""

    after_ms: int = 1000
    unacked_ms: int = 0
    lasts: bool = False
    relieves: bool = False
    note_entries: int = 0
    by_ranges: bool = False

    def room(self, lanes: Lanes) -> int:
        return WINDOW_ENTRIES - lanes.waiting

    def bound(self, lanes: Lanes) -> str | None:
        waiting = lanes.waiting
        return f"{waiting} entries wait, and the window allows no more" if waiting >= WINDOW_ENTRIES else None


def keyed_strategy(config: LaneConfig) -> KeyedStrategy:
    """Return the strategy that the configuration names."""
    after_ms = round(1000 * config.lane_after_s)
    by_ranges = not config.keyed_consistent_hashing
    if config.keyed_dispatch == "window":
        return ByWindow(after_ms, by_ranges=by_ranges)
    unacked_ms = round(1000 * config.lane_unacked_s)
    return ByLanes(
        config.lane_max,
        config.lane_memory_bytes,
        after_ms,
        unacked_ms,
        relieves=config.lane_relief,
        note_entries=config.lane_note_entries,
        by_ranges=by_ranges,
    )
