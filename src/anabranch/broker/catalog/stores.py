"""The open stores of this broker, seen as one storage.

A log stays in one store for its whole life; a store is opened and closed as a whole. This module must not
know which broker should own a store, nor what clients do with its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

from anabranch.errors import NotOwnerError, PersistenceError
from anabranch.ledger.storage import SegmentLog, SegmentStorage

StorageOf = Callable[[int], SegmentStorage]
"""Returns a new storage for the store with this number, which is not open yet."""


class Stores:
    """The open stores by number."""

    def __init__(
        self,
        storage_of: StorageOf,
        failed: Callable[[int, PersistenceError], None] = lambda store, error: None,
    ) -> None:
        """`failed` is called when a store cannot store entries any more."""
        self.opened: dict[int, SegmentStorage] = {}
        self._storage_of = storage_of
        self._failed = failed

    def is_open(self, store: int) -> bool:
        return store in self.opened

    async def open(self, store: int, name: str = "", fence: str | None = None) -> int:
        """Recover and open a store, and return its identity. Does nothing if it is open."""
        if store not in self.opened:
            storage = self._storage_of(store)
            storage.watch_failure(partial(self._failed, store))
            await storage.open(name, fence)
            self.opened[store] = storage
        return self.opened[store].store_id

    async def checkpoint(self, store: int) -> None:
        """Make the next opening of an open store short, while its logs stay in use."""
        await self.opened[store].checkpoint()

    async def close(self, store: int, *, hastily: bool = False) -> None:
        """Forget the logs of a store at once, make it durable and unlock it; as `SegmentStorage.close`."""
        storage = self.opened.pop(store, None)
        if storage is not None:
            await storage.close(hastily=hastily)

    def check(self, store: int) -> None:
        """Raise NotOwnerError when the store is not open here."""
        if store not in self.opened:
            raise NotOwnerError(f"store {store} is not served by this broker")

    def names(self) -> Sequence[str]:
        """Return the names of all logs in all open stores, sorted."""
        return sorted(name for storage in self.opened.values() for name in storage.names())

    def side_names(self) -> Sequence[str]:
        """Return the names of all side logs in all open stores, sorted."""
        return sorted(name for storage in self.opened.values() for name in storage.side_names())

    def store_of(self, name: str) -> int | None:
        """Return the open store that has the log; None when no open store has it."""
        for store, storage in self.opened.items():
            if storage.get(name) is not None:
                return store
        return None

    def get(self, name: str) -> SegmentLog | None:
        for storage in self.opened.values():
            log = storage.get(name)
            if log is not None:
                return log
        return None

    def identity(self, store: int, log: SegmentLog) -> int:
        """Return a number that tells a log of this open store from all earlier and later logs of its name."""
        parts = f"{store}/{self.opened[store].store_id}/{log.id}"
        # 48 bits: JSON readers that know only floating-point numbers keep it exact.
        return int.from_bytes(blake2b(parts.encode(), digest_size=6).digest())

    async def create(self, name: str, store: int) -> SegmentLog:
        """Return a log, created durably in this store if no open store has it."""
        found = self.store_of(name)
        if found is None:
            self.check(store)
            found = store
        return await self.opened[found].create(name)

    async def delete(self, name: str) -> None:
        """Remove a log with its cursors, durably. Does nothing if there is none."""
        # A log that a store has hidden already may not be removed durably yet, so every store is asked.
        for storage in tuple(self.opened.values()):
            await storage.delete(name)
