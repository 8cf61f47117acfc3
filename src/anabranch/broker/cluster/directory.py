"""The living brokers and the owner of each store: a watched copy of the records in the metadata store.

Every broker has a directory. It may be outdated for a moment, so the broker that is called checks again and
refuses a request for a store that it does not own. This module must not know the content of stores, nor
decide which broker should own a store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from anabranch.aio import TaskRegistry
from anabranch.errors import MetadataError
from anabranch.metadata import records
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.records import StoreRecord
from anabranch.metadata.store import MetadataStore

_logger = logging.getLogger(__name__)

RETRY_S = 0.2


class Directory:
    """Brokers and stores by number, as of the last read."""

    def __init__(self, store: MetadataStore) -> None:
        self.brokers: Mapping[int, BrokerRecord] = {}
        """The brokers whose lease has not run out."""
        self.stores: Mapping[int, StoreRecord] = {}
        """All stores of the cluster, with and without an owner."""
        self._store = store
        self._watchers: dict[object, Callable[[], None]] = {}
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()
        self._undo: list[Callable[[], None]] = []
        self._tasks = TaskRegistry()

    def owner_of(self, store: int) -> BrokerRecord | None:
        """The living broker that owns the store; None while the store has no owner."""
        record = self.stores.get(store)
        if record is None or record.owner is None:
            return None
        broker = self.brokers.get(record.owner)
        return broker if broker is not None and broker.generation == record.generation else None

    def served(self) -> tuple[int, ...]:
        """The stores that have an owner, sorted."""
        return tuple(store for store in sorted(self.stores) if self.owner_of(store) is not None)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change of brokers or owners; returns the undo."""
        key = object()
        self._watchers[key] = changed

        def undo() -> None:
            self._watchers.pop(key, None)

        return undo

    async def start(self) -> None:
        """Read the records once, and follow their changes from then on."""
        roots = (records.BROKERS, records.STORES)
        self._undo = [self._store.watch(root, lambda path: self._changed.set()) for root in roots]
        await self.look()
        self._tasks.spawn(self._follow())

    async def stop(self) -> None:
        for undo in self._undo:
            undo()
        await self._tasks.stop()

    async def look(self) -> None:
        """Read all records now, so that a caller sees its own changes without waiting for the watch."""
        # One look at a time: two looks that overlap could finish in the wrong order, and the older result
        # would replace the newer one until the next change.
        async with self._looking:
            self._changed.clear()
            try:
                brokers = await self._load(BrokerRecord, records.BROKERS)
                stores = await self._load(StoreRecord, records.STORES)
            except BaseException:
                # The change that caused this look has not been read; `_follow` has to look again.
                self._changed.set()
                raise
        if (brokers, stores) != (self.brokers, self.stores):
            self.brokers, self.stores = brokers, stores
            for watcher in tuple(self._watchers.values()):
                watcher()

    async def _load(self, kind: type[records.R], root: str) -> dict[int, records.R]:
        found: dict[int, records.R] = {}
        for part in await self._store.children(root):
            stored = await self._store.get(f"{root}/{part}")
            if stored is not None:
                found[int(part)] = records.decode(kind, stored.value)
        return found

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            try:
                await self.look()
            except MetadataError as error:
                _logger.warning("cannot read the records of brokers and stores: %s", error)
                await asyncio.sleep(RETRY_S)
