"""The stores that this broker has open, seen as one storage.

A log lives in one store for its whole life; a store is opened and closed as a whole. Must not know who should
own a store, or what clients do with its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from anabranch.errors import NotOwnerError, PersistenceError
from anabranch.ledger.storage import SegmentLog, SegmentStorage

StorageOf = Callable[[int], SegmentStorage]
"""A storage, not yet open, of the store with this number; each is opened once."""


class Stores:
    """Any number of open stores, by their numbers."""

    def __init__(
        self,
        storage_of: StorageOf,
        failed: Callable[[int, PersistenceError], None] = lambda store, error: None,
    ) -> None:
        """`failed` is told of a store in which nothing can be stored any more."""
        self._storage_of = storage_of
        self._failed = failed
        self._opened: dict[int, SegmentStorage] = {}

    @property
    def opened(self) -> Mapping[int, SegmentStorage]:
        """The stores that are open now."""
        return self._opened

    def is_open(self, store: int) -> bool:
        return store in self._opened

    async def open(self, store: int, name: str = "", fence: str | None = None) -> None:
        """Recover a store and serve it from now on; an open one is fine. As `SegmentStorage.open`."""
        if store not in self._opened:
            storage = self._storage_of(store)
            storage.watch_failure(partial(self._failed, store))
            await storage.open(name, fence)
            self._opened[store] = storage

    async def checkpoint(self, store: int) -> None:
        """Make the next opening of an open store short; it is served meanwhile."""
        await self._opened[store].checkpoint()

    async def close(self, store: int, *, hastily: bool = False) -> None:
        """Make everything in the store durable and let go of it; its logs are gone from here at once.

        As `SegmentStorage.close`.
        """
        storage = self._opened.pop(store, None)
        if storage is not None:
            await storage.close(hastily=hastily)

    def check(self, store: int) -> None:
        """NotOwnerError when the store is not open here."""
        if store not in self._opened:
            raise NotOwnerError(f"store {store} is not served by this broker")

    def names(self) -> Sequence[str]:
        """Names of all logs in all open stores, sorted."""
        return sorted(name for storage in self._opened.values() for name in storage.names())

    def store_of(self, name: str) -> int | None:
        """Which open store has the log; None when none has."""
        for store, storage in self._opened.items():
            if storage.get(name) is not None:
                return store
        return None

    def get(self, name: str) -> SegmentLog | None:
        for storage in self._opened.values():
            log = storage.get(name)
            if log is not None:
                return log
        return None

    async def create(self, name: str, store: int) -> SegmentLog:
        """The log of that name, made in this store if no open one has it; durable when it returns."""
        found = self.store_of(name)
        if found is None:
            self.check(store)
            found = store
        return await self._opened[found].create(name)

    async def delete(self, name: str) -> None:
        """Remove the log with its cursors, durably; unknown names are fine."""
        # One that has just been removed is not gone for good before its store says so.
        for storage in tuple(self._opened.values()):
            await storage.delete(name)
