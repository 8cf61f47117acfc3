"""Keeps the bounds of a store ahead of the ledger ids and journal files that the store uses."""

from __future__ import annotations

from collections.abc import Awaitable

from anabranch.ledger.disks.disk import Disk
from anabranch.ledger.format.catalog import Bounds
from anabranch.ledger.recovery.store_files import StoreFiles

LEDGERS_RESERVED = 2**16
"""How many ledger ids the bounds declare as used at a time. A killed process leaves the rest unused."""


class UsedNumbers:
    """The bounds of one store. A number is durable in them before a commit uses it."""

    def __init__(self, disk: Disk) -> None:
        self._file = StoreFiles(disk).bounds
        self._bounds = Bounds(0, 0, 0, 0)

    def start_at(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def prepare(self, journal: int, next_ledger: int) -> Awaitable[None] | None:
        """Allow a commit to this journal file, which exists, with ledgers below `next_ledger`.

        Returns an awaitable that the commit has to wait for, or None, as for most commits.

        Returns what the commit has to wait for, which for most commits is nothing.
        """
        bounds = self._bounds
        if next_ledger > bounds.next_ledger:
            return self._save(journal, next_ledger + LEDGERS_RESERVED)
        return self._save(journal, bounds.next_ledger) if journal > bounds.journal else None

    async def close(self, next_ledger: int) -> None:
        """Release the ledger ids from `next_ledger` on, which the catalog records as unused."""
        await self._save(self._bounds.journal, next_ledger)

    async def _save(self, journal: int, next_ledger: int) -> None:
        bounds = Bounds(self._bounds.salt, self._bounds.serial + 1, next_ledger, journal)
        await self._file.save(bounds, urgent=True)
        self._bounds = bounds
