"""The record that tells the other brokers that this one is alive. It disappears when the lease ends.

This module must not know stores.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from anabranch.aio import Backoff, TaskRegistry
from anabranch.broker.cluster.directory import Directory
from anabranch.errors import AnabranchError
from anabranch.metadata import records
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.store import MetadataStore

_logger = logging.getLogger(__name__)

GENERATIONS: Final = "/sequences/broker-start"
RETRIES: Final = Backoff(0.05, 1.0, jitter=0.0)


class BrokerLease:
    """Registers one broker, and registers it again if its lease ran out while the process was alive."""

    def __init__(self, directory: Directory, store: MetadataStore, me: BrokerRecord) -> None:
        self.me = me
        """The record of this broker; generation -1 until it has registered."""
        self._directory = directory
        self._store = store
        self._path = records.broker_path(me.id)
        self._tasks = TaskRegistry()

    async def register(self) -> None:
        """Take a generation that no other broker start has used, and join the living brokers."""
        generation = await self._store.increment(GENERATIONS)
        self.me = msgspec.structs.replace(self.me, generation=generation)
        await self._write()

    async def _write(self) -> None:
        await self._store.put(self._path, records.encode(self.me), ephemeral=True)
        await self._directory.look()

    def renew_if_lapsed(self) -> None:
        """Register again in the background if the directory no longer lists this broker."""
        if self._lapsed and not self._tasks:
            self._tasks.spawn(self._renew(), "register again")

    async def end(self) -> None:
        """Remove the record. If that fails, the record stays until the lease ends."""
        await self._tasks.stop()
        try:
            found = await self._store.get(self._path)
            if found is not None and records.decode(BrokerRecord, found.value) == self.me:
                await self._store.delete(self._path, expected=found.version)
        except AnabranchError as error:
            _logger.warning("the record of this broker stays until its lease ends: %s", error)

    @property
    def _lapsed(self) -> bool:
        found = self._directory.brokers.get(self.me.id)
        # A record of a later generation belongs to the successor of this process.
        return found is None or found.generation < self.me.generation

    async def _renew(self) -> None:
        delays_s = RETRIES.delays()
        while self._lapsed:
            _logger.warning("the lease of this broker had ended; it registers again")
            try:
                await self._write()
            except AnabranchError as error:
                _logger.warning("this broker cannot register: %s", error)
            await asyncio.sleep(next(delays_s))
