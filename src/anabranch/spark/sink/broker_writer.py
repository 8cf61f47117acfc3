"""Writes rows at least once, through a producer of the client."""

from __future__ import annotations

from collections import deque
from typing import Any

from anabranch.client.bulk.bulk_producer import BulkProducer
from anabranch.client.produce.futures import BulkFuture
from anabranch.spark.brokers.thread_client import ThreadClient
from anabranch.spark.sink.encoding import RowEncoder
from anabranch.spark.topics import OutgoingRows


class BrokerWriter:
    """The writing port over one producer."""

    def __init__(self, clients: ThreadClient, topic: str, entry_bytes: int, compression: Any) -> None:
        self._clients = clients
        self._entry_bytes = entry_bytes
        self._waiting: deque[BulkFuture] = deque()
        self._rotation = clients.rng.randrange(2**16)
        creating = clients.bulk().create_bulk_producer(topic, compression=compression)
        self._producer: BulkProducer = clients.run(creating)

    def write(self, rows: OutgoingRows) -> None:
        # Rows without a key go to the next bucket with each batch.
        self._rotation += 1
        encoder = RowEncoder(rows, self._entry_bytes, self._rotation)
        self._waiting.append(self._clients.run(self._producer.enqueue_encoded(encoder)))
        # Report an error of earlier rows now rather than after the last row.
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def finish(self) -> None:
        self._clients.run(self._finish())

    async def _finish(self) -> None:
        while self._waiting:
            await self._waiting.popleft()

    def close(self) -> None:
        self._clients.run(self._producer.close(timeout=0))
