"""The producer of bulk writers: rows in columns that encode themselves, and ready-made entries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from anabranch.client.produce.encoded_rows import EncodedRows, add_encoded, add_entries
from anabranch.client.produce.futures import BulkFuture
from anabranch.client.produce.producer import AsyncProducer
from anabranch.errors import InvalidConfigurationError


class BulkProducer(AsyncProducer[bytes]):
    """Publishes rows that a bulk writer has encoded; made by `BulkClient`."""

    async def enqueue_encoded(self, rows: EncodedRows) -> BulkFuture:
        """As `enqueue_many`, for messages in columns that encode themselves."""
        await self._admit()
        bulk = BulkFuture(self._loop)
        try:
            add_encoded(rows, self._routes, self._counter.last + 1, self._message_bytes_max, bulk)
            self._counter.last += rows.row_count
        finally:
            bulk.arm()
        await asyncio.sleep(0)
        return bulk

    async def enqueue_entries(self, entries: Sequence[tuple[bytes, int]]) -> BulkFuture:
        """As `enqueue_many`, for ready-made entries and their message counts; the topic must be one log."""
        if self._encryption is not None:
            raise InvalidConfigurationError("ready-made entries are not encrypted; use another producer")
        await self._admit()
        bulk = BulkFuture(self._loop)
        try:
            add_entries(entries, self._routes, self._counter.last + 1, bulk)
            self._counter.last += sum(count for _, count in entries)
        finally:
            bulk.arm()
        await asyncio.sleep(0)
        return bulk
