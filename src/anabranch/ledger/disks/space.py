"""Tracks the room on a store's disk. While it is low, the store refuses entries and uses its reserve.

The store refuses entries before the disk is full, so that acknowledgements, deletions and the ledger files
still have room. If a write fails nevertheless, the reserve file is given up in steps, and allocated again
later. This module knows nothing of what is written.

The store stops taking entries before the disk is full, so that acknowledgements, deletions and the ledger
files still find room. A reserve file is given up in steps when a write fails all the same, and held again
later. This module knows nothing of what is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from anabranch.aio import Backoff
from anabranch.errors import StorageFullError
from anabranch.ledger.disks.disk import Disk, DiskFullError
from anabranch.ledger.limits import WORTHWHILE_BYTES

T = TypeVar("T")

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the free space is checked."""

RESERVE_SHARE = 16
"""The reserve is at most this fraction of the disk, so that a small disk remains usable."""

GIVEN_UP_BYTES = 256 * 1024
"""How much of the reserve file is given up at a time."""

PATIENCE = Backoff(1.0, 30.0)
"""How long a store counts as full after a failed write, because the free space may not show the cause."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The free bytes at which a store stops and resumes taking entries, and the size of its reserve."""

    stop: int
    resume: int
    held: int

    @staticmethod
    def of(total_bytes: int, wanted_bytes: int) -> Levels:
        """Return the levels for a disk of this size and a configured reserve."""
        stop = min(wanted_bytes, total_bytes // RESERVE_SHARE)
        return Levels(stop, stop + max(stop // 2, min(2**20, total_bytes // 64)), stop // 4)


def is_full(free_bytes: int, owed_bytes: int, levels: Levels, *, was_full: bool) -> bool:
    """Return whether the store must refuse entries; `owed_bytes` still have to go to ledger files."""
    return free_bytes - owed_bytes < (levels.resume if was_full else levels.stop)


class StoreSpace:
    """Whether one store has room for entries. `owed` returns the bytes not yet in the ledger files."""

    def __init__(self, disk: Disk, wanted_bytes: int, owed: Callable[[], int]) -> None:
        self._disk = disk
        self._wanted_bytes = wanted_bytes
        self._owed = owed
        self._levels = Levels(0, 0, 0)
        self._held = 0
        self._failures = 0
        self._patient_until_s = 0.0
        self._due = asyncio.Event()
        self.free_bytes: int | None = None
        """The free space at the last check, minus the bytes written since."""
        self.full: str | None = None
        """Why the store refuses entries now, or None if it accepts them."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the store becomes full or has room again, and after each check while it is full."""

    def check(self) -> None:
        """Raise StorageFullError while the store accepts no entries."""
        if self.full is not None:
            raise StorageFullError(self.full)

    def used(self, size_bytes: int) -> None:
        """Account for written bytes. The store becomes full as soon as they use up the room."""
        if self.free_bytes is not None:
            self.free_bytes -= size_bytes
            if self.full is None and is_full(self.free_bytes, self._owed(), self._levels, was_full=False):
                self._become_full(self._little_room())

    def ran_out(self, error: DiskFullError) -> StorageFullError:
        """Refuse entries for a while after a write found no room; return the error for its callers."""
        now_s = asyncio.get_running_loop().time()
        if self.full is None:
            if now_s > self._patient_until_s + PATIENCE.maximum:
                self._failures = 0
            self._become_full(str(error))
        self._patient_until_s = now_s + PATIENCE.delay(self._failures)
        return StorageFullError(self.full)

    async def give_up_reserve(self) -> bool:
        """Give up a part of the reserve file after a failed write. Returns False if none is left."""
        if not self._held:
            return False
        left = max(self._held - GIVEN_UP_BYTES, 0)
        self._held = await self._disk.reserve(left)
        return True

    async def with_reserve(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run repeatable work, giving up parts of the reserve file for as long as the disk is full."""
        while True:
            try:
                return await work()
            except DiskFullError:
                if not await self.give_up_reserve():
                    raise

    def is_low(self, freed_bytes: int) -> bool:
        """Return whether the disk will be full soon, and freeing this many bytes would help for a while."""
        return (
            self.full is None
            and self.free_bytes is not None
            and freed_bytes >= self._levels.resume > 0
            and self.free_bytes - self._owed() < 2 * self._levels.resume
        )

    def has_use_for(self, freed_bytes: int, catalog_bytes: int) -> bool:
        """Return whether a full store can make a checkpoint, and whether the freed bytes are worth it."""
        reachable = 0 if self.free_bytes is None else self.free_bytes + self._held
        needed = self._owed() + catalog_bytes + WORTHWHILE_BYTES
        return freed_bytes >= WORTHWHILE_BYTES and reachable >= needed

    def look_soon(self) -> None:
        """Check the free space at once, because files were deleted."""
        self._due.set()

    async def run(self) -> None:
        """Check the free space periodically until cancelled."""
        while True:
            self._due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._due.wait()
            try:
                await self.look()
            except OSError as error:
                _log.debug("cannot read the free space of the disk: %s", error)

    async def find_reserve(self) -> None:
        """Take over the reserve file of an earlier process."""
        self._held = await self._disk.reserve()

    async def look(self) -> None:
        """Check the free space, and decide whether the store accepts entries."""
        space = await self._disk.space()
        self.free_bytes = space.free_bytes
        levels = self._levels = Levels.of(space.total_bytes, self._wanted_bytes)
        full = is_full(space.free_bytes, self._owed(), levels, was_full=self.full is not None)
        if full and self.full is None:
            self._become_full(self._little_room())
        elif self.full is not None:
            if not full and asyncio.get_running_loop().time() >= self._patient_until_s:
                self._failures += 1
                self.full = None
                _log.info("the store accepts entries again, with %d bytes free", space.free_bytes)
            self.changed()
        if self.full is None and self._held < levels.held:
            await self._hold(levels)

    async def _hold(self, levels: Levels) -> None:
        """Allocate the reserve file again, if that leaves enough room for entries."""
        assert self.free_bytes is not None
        more = levels.held - self._held
        if not is_full(self.free_bytes - more, self._owed(), levels, was_full=True):
            self._held = await self._disk.reserve(levels.held)

    def _little_room(self) -> str:
        return (
            f"its disk has {max(self.free_bytes or 0, 0)} bytes free, and entries in the journal need "
            f"{self._owed()} of them"
        )

    def _become_full(self, reason: str) -> None:
        self.full = f"the store accepts no entries, because {reason}"
        _log.warning("%s; delete topics or free disk space, and it resumes by itself", self.full)
        self.changed()
