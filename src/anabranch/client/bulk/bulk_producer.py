"""The producer of bulk writers: rows in columns that encode themselves, and ready-made entries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from anabranch.client.bulk.encoded_rows import EncodedRows, EntryIntake
from anabranch.client.produce.futures import BulkFuture
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.produce.publisher import Publisher
from anabranch.errors import InvalidConfigurationError
from anabranch.speedups import Counter


class BulkProducer(AsyncProducer[bytes]):
    """Publishes rows that a bulk writer has encoded; made by `BulkClient`."""

    def __init__(self, publisher: Publisher[bytes]) -> None:
        super().__init__(publisher)
        self._entries = EntryIntake(publisher.parts, publisher.routes)

    async def enqueue_encoded(self, rows: EncodedRows) -> BulkFuture:
        """As `enqueue_many`, for messages in columns that encode themselves."""
        counter, bulk = await self._admitted()
        try:
            self._entries.add_encoded(rows, counter.last + 1, bulk)
            counter.last += rows.row_count
        finally:
            bulk.arm()
        await asyncio.sleep(0)
        return bulk

    async def enqueue_entries(self, entries: Sequence[tuple[bytes, int]]) -> BulkFuture:
        """As `enqueue_many`, for ready-made entries and their message counts; the topic must be one log."""
        if self.publisher.parts.encryption is not None:
            raise InvalidConfigurationError("ready-made entries are not encrypted; use another producer")
        counter, bulk = await self._admitted()
        try:
            self._entries.add_entries(entries, counter.last + 1, bulk)
            counter.last += sum(count for _, count in entries)
        finally:
            bulk.arm()
        await asyncio.sleep(0)
        return bulk

    async def _admitted(self) -> tuple[Counter, BulkFuture]:
        """Wait for room; return the last sequence id and a future for the entries to come."""
        await self.publisher.intake.admit()
        return self.publisher.counter, BulkFuture(self.publisher.parts.loop)
