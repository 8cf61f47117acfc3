"""Reads the slices of a task one after the other, and requests the next ones in advance.

Without requests in advance, each slice would cost a round trip before its first entry, which adds up in a
task with many small slices.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic

from anabranch.errors import OperationTimeoutError, TopicNotFoundError
from anabranch.spark.decide.source.topology import Slice
from anabranch.spark.topics import E, SliceReader

READERS_AHEAD = 8
"""Most slices that are open at once."""

ROWS_AHEAD = 50_000
"""No further slice is opened while the open ones have this many rows; two are always open."""


class SlicesAhead(Generic[E]):
    """Reads slices one after the other and requests the next ones in advance."""

    def __init__(
        self,
        open_slice: Callable[[Slice], Awaitable[SliceReader[E] | None]],
        slices: Sequence[Slice],
        timeout_s: float,
        service_url: str,
    ) -> None:
        """`timeout_s` is the longest wait for the next entries of a slice."""
        self._open_slice = open_slice
        self._slices = slices
        self._timeout_s = timeout_s
        self._service_url = service_url
        self._opened = 0
        self._readers: dict[int, SliceReader[E] | None] = {}
        self._reads: deque[tuple[int, asyncio.Task[list[E]]]] = deque()
        self._rows_ahead = 0

    async def next(self) -> tuple[int, list[E]] | None:
        """Return the next entries with the number of their slice, or None at the end."""
        while True:
            self._open_more()
            if not self._reads:
                return None
            number, reading = self._reads[0]
            try:
                async with asyncio.timeout(self._timeout_s):
                    entries = await reading
            except TimeoutError as error:
                part, why = self._slices[number], str(error) or "the broker did not answer"
                raise OperationTimeoutError(
                    f"segment {part.segment} of topic {part.topic} delivered no message within "
                    f"{self._timeout_s:g} s: {why}; check {self._service_url} or raise pollTimeoutMs"
                ) from None
            if entries:
                # Read ahead while the caller decodes these entries.
                self._reads[0] = (number, asyncio.ensure_future(self._more(number)))
                return number, entries
            self._reads.popleft()
            self._readers.pop(number, None)
            self._rows_ahead -= self._slices[number].rows

    def _open_more(self) -> None:
        while (
            self._opened < len(self._slices)
            and len(self._reads) < READERS_AHEAD
            and (len(self._reads) < 2 or self._rows_ahead < ROWS_AHEAD)
        ):
            number = self._opened
            self._opened += 1
            self._rows_ahead += self._slices[number].rows
            self._reads.append((number, asyncio.ensure_future(self._first(number))))

    async def _first(self, number: int) -> list[E]:
        self._readers[number] = await self._open_slice(self._slices[number])
        return await self._more(number)

    async def _more(self, number: int) -> list[E]:
        reader = self._readers[number]
        try:
            return [] if reader is None else await reader.read(self._timeout_s)
        except TopicNotFoundError:
            # The segment was pruned or recreated after the lookup. The caller notices that the slice is
            # short.
            return []

    async def close(self) -> None:
        reads = [reading for _, reading in self._reads]
        self._reads.clear()
        for reading in reads:
            reading.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        for reader in self._readers.values():
            if reader is not None:
                await reader.close()
