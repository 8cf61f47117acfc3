"""The homes of topics: a process leads the topics of the homes whose locks it holds in the metadata store.

Homes are the stores of a control process. They hold no logs. A lock is a value that vanishes with the session
of its process, so another process takes the home over when the metadata store has ended that session. A mark
stays beside the lock until the holder gives the home back with no call under way.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from anabranch.aio import Backoff
from anabranch.control.quiet_periods import QuietPeriods
from anabranch.errors import AnabranchError, HeldError, NotFoundError, VersionConflictError
from anabranch.ledger.memory import MemoryStorage
from anabranch.metadata.store import ABSENT, MetadataStore

_logger = logging.getLogger(__name__)

LOCKS: Final = "/home-locks"
MARKS: Final = "/home-marks"
NUMBERS: Final = "/control-numbers"

RETRIES: Final = Backoff(0.05, 1.0, jitter=0.0)

NUMBERS_MAX: Final = 4096
"""How many control processes one cluster may have."""


class HomeLock(MemoryStorage):
    """A home. Opening it acquires its lock."""

    def __init__(self, store: MetadataStore, number: int, quiet: QuietPeriods | None = None) -> None:
        """`quiet` begins a quiet period if the former holder did not give the home back."""
        super().__init__()
        self._store = store
        self._path = f"{LOCKS}/{number}"
        self._mark = f"{MARKS}/{number}"
        self._quiet = quiet or QuietPeriods()
        self._holder = b""

    async def open(self, name: str = "", fence: str | None = None) -> None:
        """Acquire the lock. Raises HeldError while another process has it, whose session has to end first."""
        self._holder = name.encode()
        try:
            await self._take()
        except HeldError:
            raise
        except AnabranchError:
            # The store may have carried out the write although its answer was lost. Without this, the lock of
            # a process that does not know it has the lock would keep the home without a leader.
            await self._give_back(insist=True)
            raise
        await super().open(name, fence)

    async def _take(self) -> None:
        try:
            await self._store.put(self._path, self._holder, expected=ABSENT, ephemeral=True)
        except VersionConflictError:
            found = await self._store.get(self._path)
            if found is None or found.value != self._holder:
                holder = "" if found is None else found.value.decode()
                raise HeldError(f"{holder or 'another process'} has {self._path}", holder) from None
        try:
            await self._store.put(self._mark, self._holder, expected=ABSENT)
        except VersionConflictError:
            self._quiet.begin()

    async def close(self, *, hastily: bool = False) -> None:
        """Give the lock back. A process that lives on retries until it has; one that ends tries once."""
        await super().close(hastily=hastily)
        await self._give_back(insist=hastily)

    async def _give_back(self, *, insist: bool) -> None:
        for delay_s in RETRIES.delays():
            try:
                found = await self._store.get(self._path)
                if found is None or found.value != self._holder:
                    return
                if not insist and self._quiet.is_over:
                    with suppress(NotFoundError):
                        await self._store.delete(self._mark)
                await self._store.delete(self._path, expected=found.version)
                return
            except AnabranchError as error:
                # The session of a process that ends takes the lock with it.
                if not insist:
                    return
                _logger.warning("%s is not given back yet: %s", self._path, error)
            await asyncio.sleep(delay_s)


async def claim_number(store: MetadataStore, address: str) -> int:
    """Claim the lowest number that no living control process has. It is free again when the session ends."""
    for number in range(NUMBERS_MAX):
        with suppress(VersionConflictError):
            await store.put(f"{NUMBERS}/{number}", address.encode(), expected=ABSENT, ephemeral=True)
            return number
    raise HeldError(f"{NUMBERS_MAX} control processes are already running")
