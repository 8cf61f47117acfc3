"""Removes the live topics that clients made by using them, once no client has used them for a while.

Those with partitions stay, because clients rely on the number of partitions.

Must not know connections, commands or layouts.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from anabranch.broker.catalog.classic_topics import ClassicTopics
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.errors import AnabranchError
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName

ROUND_S: Final = 60.0
"""A topic that two looks in a row find unused is removed."""

_logger = logging.getLogger(__name__)


class UnusedLiveTopics:
    """The records of live topics in the stores of this broker. Topics that operators created stay."""

    def __init__(self, classic: ClassicTopics, logs: ServedLogs, records: TopicStore) -> None:
        self._classic = classic
        self._logs = logs
        self._records = records
        self._unused: set[TopicName] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self.round()
            except AnabranchError as error:
                _logger.warning("unused live topics cannot be removed now: %s", error)

    async def round(self) -> None:
        """Look at every live topic once."""
        before, self._unused = self._unused, set()
        for namespace in await self._records.namespaces_with_live_topics():
            async for name, record in self._records.walk_classic(namespace, "non-persistent"):
                here = self._logs.stores.is_open(record.store())
                removable = record.made_by_use and not record.partitions
                if not removable or not here or self._logs.loaded(name) is not None:
                    continue
                if name in before:
                    await self._classic.forget_unused(name)
                else:
                    self._unused.add(name)
