"""Writes ledger files behind the journal, and reads them.

The files are synced only before a journal file is deleted: producers got their receipts after the journal's
sync, and the journal still holds all bytes that a crash loses here. This module knows ledgers and files, but
not logs.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice

from anabranch.errors import DamagedEntriesError
from anabranch.ledger.cache import Block, Cache, ReadAhead
from anabranch.ledger.disks.disk import Disk, DiskFullError, Write
from anabranch.ledger.format.records import decode_record
from anabranch.ledger.ledgers import Ledger
from anabranch.ledger.storage import Entry
from anabranch.model.ids import Position

_log = logging.getLogger(__name__)

LEDGERS_LONG = 2000
LEDGERS_AT_ONCE = 256

BLOCK_BYTES = 1024 * 1024
"""The size of one read from the disk, unless the file ends earlier."""

GAP_BYTES = 32 * 1024
"""Gaps up to this many bytes between two wanted entries are read too, because a second access is slower."""


class WriteBehind:
    """Writes committed entries to the ledger files, one round at a time."""

    def __init__(self, disk: Disk, cache: Cache) -> None:
        self._disk = disk
        self._cache = cache
        self._lock = asyncio.Lock()
        self._waiting: dict[int, Ledger] = {}
        self._unsynced: dict[int, Ledger] = {}
        self._dropped: list[Ledger] = []
        self._any_dropped = asyncio.Event()
        self._has_room = True
        self._stopped = False
        self._writing_bytes = 0
        self.waiting_bytes = 0
        self.written: Callable[[int], None] = lambda size_bytes: None
        """Called with the number of bytes written in each round."""
        self.deleted: Callable[[], None] = lambda: None
        """Called after files were deleted."""

    @property
    def owed_bytes(self) -> int:
        """The bytes that the ledger files still lack, including those being written."""
        return self.waiting_bytes + self._writing_bytes

    def stop_if_long(self) -> bool:
        """Stop writing if so many ledgers are waiting that replaying the journal takes less time."""
        self._stopped = len(self._waiting) > LEDGERS_LONG
        return self._stopped

    def add(self, ledger: Ledger, size_bytes: int) -> None:
        """Note that the ledger has another `size_bytes` to write."""
        if not ledger.dropped:
            self._waiting[ledger.id] = ledger
            self.waiting_bytes += size_bytes

    async def flush(self) -> None:
        """Write all entries waiting now. On DiskFullError they keep waiting."""
        for _ in range(0, len(self._waiting), LEDGERS_AT_ONCE):
            if not self._stopped:
                await self._write_some()
        self._cache.shrink()

    async def _write_some(self) -> None:
        """Write the entries of the ledgers that have waited longest."""
        async with self._lock:
            taken = dict(islice(self._waiting.items(), LEDGERS_AT_ONCE))
            for id_ in taken:
                del self._waiting[id_]
            size_bytes = sum(len(buffer) for ledger in taken.values() for buffer in ledger.waiting)
            self._writing_bytes = size_bytes if self._waiting else self.waiting_bytes
            self.waiting_bytes -= self._writing_bytes
            ledgers = [ledger for ledger in taken.values() if not ledger.dropped]
            ends = [(ledger.entries, len(ledger.waiting), len(ledger.waiting_rows)) for ledger in ledgers]
            writes: list[Write] = []
            for ledger in ledgers:
                # The lists may grow during the write.
                writes.append((ledger.data_file, tuple(ledger.waiting)))
                writes.append((ledger.index_file, tuple(ledger.waiting_rows)))
            try:
                if writes:
                    await self._disk.append(writes)
            except DiskFullError:
                self._waiting = {**taken, **self._waiting}
                self.waiting_bytes += self._writing_bytes
                self._writing_bytes = 0
                raise
            written_bytes, self._writing_bytes = self._writing_bytes, 0
            self.written(written_bytes)
            for ledger, (end, records, rows) in zip(ledgers, ends, strict=True):
                del ledger.waiting[:records], ledger.waiting_rows[:rows]
                self._unsynced[ledger.id] = ledger
                ledger.flushed = end
                ledger.tail.flushed = max(ledger.tail.flushed, ledger.first_ordinal + end)

    async def flush_if_room(self) -> None:
        """Like `flush`, but on a full disk the entries stay in memory and later calls do not try again."""
        if self._has_room:
            try:
                await self.flush()
            except DiskFullError:
                self._has_room = False

    async def sync(self) -> None:
        """Sync the ledger files written so far."""
        async with self._lock:
            ledgers = [ledger for ledger in self._unsynced.values() if not ledger.dropped]
            self._unsynced.clear()
            await self._disk.sync([file for ledger in ledgers for file in files_of(ledger)])

    def drop(self, ledgers: Sequence[Ledger]) -> None:
        """Accept ledgers whose removal is durable. `run_deletes` deletes their files."""
        self._dropped += ledgers
        self._any_dropped.set()

    async def run_deletes(self) -> None:
        """Delete the files of dropped ledgers until cancelled, independently of any caller."""
        while True:
            await self._any_dropped.wait()
            self._any_dropped.clear()
            await self.delete_dropped()

    async def delete_dropped(self) -> None:
        """Return once the files of all ledgers dropped so far are deleted; discard their waiting entries."""
        async with self._lock:
            # A cancelled caller leaves the ledgers to the next call.
            ledgers = tuple(self._dropped)
            for ledger in ledgers:
                self._waiting.pop(ledger.id, None)
                self._unsynced.pop(ledger.id, None)
            if ledgers:
                await self.delete([file for ledger in ledgers for file in files_of(ledger)])
                del self._dropped[: len(ledgers)]

    async def delete(self, files: Sequence[str]) -> None:
        """Delete obsolete files. If that fails, they take space until the next start deletes them."""
        try:
            await self._disk.delete(files)
        except OSError as error:
            _log.warning("cannot delete %s; the next start will try again: %s", ", ".join(files), error)
        self.deleted()


def files_of(ledger: Ledger) -> tuple[str, str]:
    return ledger.data_file, ledger.index_file


class LedgerReader:
    """Reads the ledger files of all logs in large blocks, and keeps the unused part of each block."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.ahead = ReadAhead()

    async def read(
        self, log: str, ledger: Ledger, first: int, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        """Return durable entries from `first` on, at least one, up to any damaged entry.

        May raise OSError.
        """
        ends = ledger.rows.ends
        start, flushed = ledger.start_of(first), ledger.flushed
        written = first < flushed
        beyond = bisect_right(ends, start + max_bytes, first, flushed if written else ledger.entries)
        last = max(min(beyond, first + max_entries), first + 1)
        if written:
            block = self.ahead.take(ledger.id, start, ends[last - 1])
        else:
            # A start on a full disk leaves journal entries in memory because their files have no room.
            block = Block(start, ledger.unwritten(start, ends[last - 1]))
        if block is None:
            want = max(ends[last - 1], min(start + BLOCK_BYTES, ends[flushed - 1]))
            block = Block(start, await self._disk.read(ledger.data_file, start, want - start))
        found = _decode(log, ledger, range(first, last), block)
        start = ends[found[-1].position.entry]
        self.ahead.put(ledger.id, start, block)
        return found

    async def read_each(
        self, log: str, ledger: Ledger, ordinals: Sequence[int], max_bytes: int
    ) -> list[Entry]:
        """Return the first of these durable entries and its neighbours among them. Raises like `read`."""
        numbers = _neighbours(ledger, ordinals, max_bytes)
        start, end = ledger.start_of(numbers[0]), ledger.rows.ends[numbers[-1]]
        if numbers[0] < ledger.flushed:
            block = Block(start, await self._disk.read(ledger.data_file, start, end - start))
        else:
            block = Block(start, ledger.unwritten(start, end))
        return _decode(log, ledger, numbers, block)


def _neighbours(ledger: Ledger, ordinals: Sequence[int], max_bytes: int) -> list[int]:
    """Return the entries that one access reads: the first, and those that follow it with small gaps."""
    first = ordinals[0] - ledger.first_ordinal
    bound = ledger.flushed if first < ledger.flushed else ledger.entries
    start = before = ledger.start_of(first)
    numbers: list[int] = []
    for ordinal in ordinals:
        number = ordinal - ledger.first_ordinal
        if number >= bound:
            break
        begin, end = ledger.start_of(number), ledger.rows.ends[number]
        max_bytes -= end - begin
        if numbers and (max_bytes < 0 or begin - before > GAP_BYTES or end - start > BLOCK_BYTES):
            break
        numbers.append(number)
        before = end
    return numbers


def _decode(log: str, ledger: Ledger, numbers: Sequence[int], block: Block) -> list[Entry]:
    """Return the entries in the block up to the first damaged one; DamagedEntriesError if it comes first."""
    found: list[Entry] = []
    ends = ledger.rows.ends
    for number in numbers:
        start, end = ledger.start_of(number), ends[number]
        record = decode_record(ledger.owner, number, block.data[start - block.start : end - block.start])
        if record is None:
            if found:
                return found
            raise _damage_at(log, ledger, number, block)
        found.append(
            Entry(
                Position(ledger.id, number),
                ledger.first_ordinal + number,
                record.index,
                record.count,
                record.timestamp_ms,
                record.data,
            )
        )
    return found


def _damage_at(log: str, ledger: Ledger, first: int, block: Block) -> DamagedEntriesError:
    """Return the error for a damaged entry and for damaged entries right after it, within one block."""
    ends = ledger.rows.ends
    last = first + 1
    while last < ledger.flushed and ends[last] <= block.start + len(block.data):
        start, end = ends[last - 1] - block.start, ends[last] - block.start
        if decode_record(ledger.owner, last, block.data[start:end]) is not None:
            break
        last += 1
    text = (
        f"{log}: the entry at {ledger.id}:{first} does not match its checksum; {ledger.data_file} is "
        f"damaged between bytes {ledger.start_of(first)} and {ledger.start_of(last)}"
    )
    messages = ledger.index_of(last) - ledger.index_of(first)
    return DamagedEntriesError(text, ledger.first_ordinal + first, ledger.first_ordinal + last, messages)
