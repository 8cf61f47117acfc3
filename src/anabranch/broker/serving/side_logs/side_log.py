"""One side log of a subscription: copies of entries, found by the ordinals of their originals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyroaring import BitMap64

from anabranch.broker.dispatch.spilled import SpillOrigin, decode_copy, encode_copy
from anabranch.errors import DamagedEntriesError
from anabranch.ledger.storage import AppendDone, Entry, SegmentLog

CURSOR = "lanes"


class SideLog:
    """A side log and its cursor; `first` is the ordinal of the first original."""

    def __init__(self, log: SegmentLog, first: int, origin: Mapping[str, str] | None = None) -> None:
        """`origin` tells operators where the copies of a new side log come from."""
        self.log = log
        self.first = first
        self.cursor = log.cursors.open(CURSOR, 0, origin)
        self._copied = first + log.extent.next_index
        """Originals below this ordinal are copied, or will not be."""

    @property
    def drained(self) -> bool:
        """Whether no copy is pending; copies that are not durable yet are not counted."""
        return self.cursor.acks.mark >= self.log.extent.next_ordinal

    @property
    def pending(self) -> int:
        """Copies that are not acknowledged."""
        return self.cursor.acks.pending_count(self.log.extent.next_ordinal)

    def append(self, entry: Entry, timestamp_ms: int, done: AppendDone) -> None:
        """Queue a copy; originals come in ascending order. `done` gets the copy or an error."""
        origin = SpillOrigin(entry.position, entry.ordinal, entry.index, entry.count, entry.timestamp_ms)
        count = entry.ordinal + 1 - self._copied
        self.log.append(encode_copy(origin, entry.data), count, timestamp_ms, done)
        self._copied = entry.ordinal + 1

    def ordinal(self, original: int) -> int | None:
        """Return the copy's own ordinal; None if this side log has no copy."""
        extent = self.log.extent
        index = original - self.first
        if not extent.first_index <= index < extent.next_index:
            return None
        found = extent.ordinal_of_index(index)
        is_copy = extent.index_of(found) + extent.count_of(found) == index + 1
        return found if is_copy else None

    def acknowledge(self, originals: Iterable[int]) -> None:
        """Acknowledge the copies of these originals, as far as there are any."""
        self.cursor.acknowledge([at for one in originals if (at := self.ordinal(one)) is not None])

    def acknowledge_up_to(self, original: int) -> None:
        """Acknowledge the copies of all originals below this one."""
        if original > self.first:
            self.cursor.acknowledge_up_to(self.log.extent.ordinal_of_index(original - self.first))

    def pending_originals(self) -> BitMap64:
        """Return the originals whose copies are not acknowledged."""
        extent, acks = self.log.extent, self.cursor.acks
        begin, end = extent.first_ordinal, extent.next_ordinal
        after: Iterable[int] = extent.indexes_after(begin, end)
        if acks.pending_count(end) < end - begin:
            after = [one for at, one in enumerate(after, begin) if at not in acks]
        return BitMap64(after).shift(self.first - 1)

    def parts(self) -> Iterator[tuple[int, int]]:
        """Return the originals that are acknowledged in part, and the bits of their pending messages."""
        for at, bits in self.cursor.acks.partly():
            yield from ((one, bits) for one in self._originals(at, at + 1))

    def _originals(self, begin: int, end: int) -> list[int]:
        return [self.first - 1 + after for after in self.log.extent.indexes_after(begin, end)]

    def copies_of(self, originals: Sequence[int]) -> list[int]:
        """Return the copies of these originals up to the first that this side log does not have."""
        found: list[int] = []
        for original in originals:
            at = self.ordinal(original)
            if at is None:
                break
            found.append(at)
        return found

    async def read(self, copies: Sequence[int], max_bytes: int) -> list[Entry]:
        """Return the originals of these copies; DamagedEntriesError, with the original's ordinal."""
        try:
            return _restored(await self.log.read_each(copies, max_bytes))
        except DamagedEntriesError as error:
            (original,) = self._originals(error.first, error.first + 1)
            raise DamagedEntriesError(str(error), original, original + 1) from error

    def read_cached(self, copies: Sequence[int], max_bytes: int) -> list[Entry] | None:
        """As `read`, from memory only; None when the first copy is not in memory."""
        found = self.log.read_each_cached(copies, max_bytes)
        return None if found is None else _restored(found)


def _restored(copies: Sequence[Entry]) -> list[Entry]:
    found = []
    for copy in copies:
        origin, data = decode_copy(copy.data)
        found.append(Entry(*origin, data))
    return found


BATCH_ENTRIES = 2000
BATCH_BYTES = 4 * 2**20


class CopyBatch:
    """Queues copies, and waits until all of them are durable."""

    def __init__(self, timestamp_ms: int) -> None:
        self._timestamp_ms = timestamp_ms
        self._entries: list[Entry] = []
        self._places: list[int] = []
        self._error: BaseException | None = None
        self._stored = asyncio.Event()
        self.size_bytes = 0

    @property
    def full(self) -> bool:
        """Whether the copies are enough for one commit, or one of them failed."""
        many = len(self._entries) >= BATCH_ENTRIES or self.size_bytes >= BATCH_BYTES
        return many or self._error is not None

    def add(self, side: SideLog, entries: Sequence[Entry]) -> None:
        """Queue copies of these entries, which follow those before; raises as `SegmentLog.append`."""
        for entry in entries:
            side.append(entry, self._timestamp_ms, self._done)
            self._entries.append(entry)
            self.size_bytes += len(entry.data)

    def _done(self, place: Entry | None, error: BaseException | None) -> None:
        if place is None:
            self._error = error
        else:
            self._places.append(place.ordinal)
        self._stored.set()

    async def durable(self) -> list[tuple[Entry, int]]:
        """Wait until all copies are durable; returns the entries with the ordinals of their copies."""
        while len(self._places) < len(self._entries):
            if self._error is not None:
                raise self._error
            self._stored.clear()
            await self._stored.wait()
        return list(zip(self._entries, self._places, strict=True))
