"""Reads entries from a ledger's data file: one large read for many entries, each checked.

A read stops before a damaged entry; only a read that begins with the damaged entry fails. So the entries
behind it stay readable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from anabranch.errors import CorruptDataError
from anabranch.ledger.cache import Block, ReadAhead
from anabranch.ledger.disk import Disk
from anabranch.ledger.format.records import decode_record
from anabranch.ledger.ledgers import Ledger
from anabranch.ledger.storage import Entry
from anabranch.model.ids import Position

BLOCK_BYTES = 1024 * 1024
"""Size of one read from the disk, if the file has that much."""


class LedgerReader:
    """Reads the ledger files of all logs of one storage, and keeps the unused rest of each read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._ahead = ReadAhead()

    def forget(self, ledgers: Sequence[int]) -> None:
        """Drop the kept bytes of ledgers that were dropped."""
        self._ahead.forget(ledgers)

    async def read(
        self, log: str, ledger: Ledger, first: int, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        """Flushed entries of one ledger from `first` on, at least one; OSError when the read fails."""
        ledger.check()
        ends = ledger.rows.ends
        flushed = ledger.flushed
        start = ledger.start_of(first)
        beyond = bisect_right(ends, start + max_bytes, first, flushed)
        last = max(min(beyond, first + max_entries), first + 1)
        block = self._ahead.take(ledger.id, start, ends[last - 1])
        if block is None:
            want = max(ends[last - 1], min(start + BLOCK_BYTES, ends[flushed - 1]))
            block = Block(start, await self._disk.read(ledger.data_file, start, want - start))
        found: list[Entry] = []
        for number in range(first, last):
            end = ends[number]
            record = decode_record(ledger.owner, number, block.data[start - block.start : end - block.start])
            if record is None:
                if found:
                    return found
                raise CorruptDataError(
                    f"{log}: the entry at {ledger.id}:{number} does not match its checksum; "
                    f"{ledger.data_file} is damaged between bytes {start} and {end}"
                )
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
            start = end
        self._ahead.put(ledger.id, start, block)
        return found
