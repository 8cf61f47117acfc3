"""Writes rows through a producer of the client."""

from __future__ import annotations

from collections import deque
from typing import Any

from anabranch.client.produce.bulk_producer import BulkProducer
from anabranch.client.produce.futures import BulkFuture
from anabranch.spark.encoding import RowEncoder
from anabranch.spark.live import Session
from anabranch.spark.topics import OutgoingRows


class LiveWriter:
    """The writing port over a producer of its own."""

    def __init__(self, session: Session, topic: str, entry_bytes: int, compression: Any) -> None:
        self._session = session
        self._entry_bytes = entry_bytes
        self._waiting: deque[BulkFuture] = deque()
        self._turn = session.rng.randrange(2**16)
        creating = session.bulk().create_bulk_producer(topic, compression=compression)
        self._producer: BulkProducer = session.run(creating)

    def write(self, rows: OutgoingRows) -> None:
        # Rows without a key go to the next bucket, batch by batch.
        self._turn += 1
        encoder = RowEncoder(rows, self._entry_bytes, self._turn)
        self._waiting.append(self._session.run(self._producer.enqueue_encoded(encoder)))
        # Report an error of earlier rows now and not after the last row.
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def finish(self) -> None:
        self._session.run(self._finish())

    async def _finish(self) -> None:
        while self._waiting:
            await self._waiting.popleft()

    def close(self) -> None:
        self._session.run(self._producer.close(timeout=0))
