"""Caches entries in memory: the newest entries of each log, and unused bytes of blocks that were read ahead.

Readers at the end of a log never touch the disk, and a reader that catches up touches it once per large
block. Both are bounded over all logs together, except that entries stay until a ledger file holds them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anabranch.ledger.storage import Entry

_ENTRY_OVERHEAD_BYTES = 300
"""Memory that an entry takes in addition to its data."""
_CHUNK_ENTRIES = 128
_CHUNK_BYTES = 256 * 1024


class _Chunk:
    __slots__ = ("entries", "size_bytes", "tail")

    def __init__(self, tail: CachedTail) -> None:
        self.tail = tail
        self.entries: list[Entry] = []
        self.size_bytes = 0


class Cache:
    """Limits the memory of the cached tails of all logs. The oldest chunk is dropped first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._chunks: OrderedDict[_Chunk, None] = OrderedDict()
        self.size_bytes = 0

    def shrink(self) -> None:
        """Drop the oldest chunks until the cache is within its limit."""
        while self.size_bytes > self._bytes_max and self._chunks:
            chunk = next(iter(self._chunks))
            if not chunk.tail.drop_chunk(chunk):
                return
            self.remove(chunk)

    def begin_chunk(self, tail: CachedTail) -> _Chunk:
        chunk = _Chunk(tail)
        self._chunks[chunk] = None
        return chunk

    def remove(self, chunk: _Chunk) -> None:
        del self._chunks[chunk]
        self.size_bytes -= chunk.size_bytes


class CachedTail:
    """The newest entries of one log, up to its end and without gaps."""

    __slots__ = ("__weakref__", "_cache", "_chunks", "_starts", "flushed")

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._chunks: list[_Chunk] = []
        self._starts: list[int] = []
        self.flushed = 0
        """Entries from this ordinal on are not in a ledger file yet."""

    def extend(self, entries: list[Entry], size_bytes: int) -> None:
        """Append entries with `size_bytes` of data in total; they must follow the last cached entry."""
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is None or len(chunk.entries) >= _CHUNK_ENTRIES or chunk.size_bytes >= _CHUNK_BYTES:
            chunk = self._cache.begin_chunk(self)
            self._chunks.append(chunk)
            self._starts.append(entries[0].ordinal)
        chunk.entries.extend(entries)
        size_bytes += len(entries) * _ENTRY_OVERHEAD_BYTES
        chunk.size_bytes += size_bytes
        self._cache.size_bytes += size_bytes

    def read(self, ordinal: int, max_entries: int, max_bytes: int) -> list[Entry] | None:
        """Return at least one entry, starting at `ordinal`, or None if that entry is not cached."""
        at = bisect_right(self._starts, ordinal) - 1
        if at < 0:
            return None
        chunk = self._chunks[at].entries
        skip = ordinal - self._starts[at]
        if skip >= len(chunk):
            return None
        found: list[Entry] = []
        left_bytes = max_bytes
        while True:
            for entry in chunk[skip : skip + max_entries - len(found)]:
                left_bytes -= len(entry.data)
                if left_bytes < 0 and found:
                    return found
                found.append(entry)
            at += 1
            if len(found) >= max_entries or at == len(self._chunks):
                return found
            chunk = self._chunks[at].entries
            skip = 0

    def read_each(self, ordinals: Iterable[int], max_bytes: int) -> list[Entry]:
        """Return the entries with these ordinals up to the first uncached one.

        The first entry may be of any size.
        """
        found: list[Entry] = []
        for ordinal in ordinals:
            at = bisect_right(self._starts, ordinal) - 1
            if at < 0 or ordinal - self._starts[at] >= len(self._chunks[at].entries):
                break
            entry = self._chunks[at].entries[ordinal - self._starts[at]]
            max_bytes -= len(entry.data)
            if max_bytes < 0 and found:
                break
            found.append(entry)
        return found

    def drop(self) -> None:
        """Drop all entries, because the log was deleted or is not in use."""
        for chunk in self._chunks:
            self._cache.remove(chunk)
        self._chunks.clear()
        self._starts.clear()

    def drop_chunk(self, chunk: _Chunk) -> bool:
        """Drop the oldest chunk, unless it has entries that are not in a ledger file yet."""
        if chunk.entries[-1].ordinal >= self.flushed:
            return False
        del self._chunks[0], self._starts[0]
        return True


class Block(NamedTuple):
    """Bytes of a ledger's data file, beginning at offset `start`."""

    start: int
    data: bytes


class ReadAhead:
    """Blocks with unused bytes, keyed by the offset at which their reader stopped."""

    def __init__(self, blocks_max: int = 16) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()

    def take(self, ledger: int, start: int, end: int) -> Block | None:
        """Return the block of the reader that stopped at `start`, if it contains the bytes up to `end`."""
        block = self._blocks.pop((ledger, start), None)
        if block is None or block.start + len(block.data) < end:
            return None
        return block

    def put(self, ledger: int, stopped: int, block: Block) -> None:
        """Keep the block for the reader that stopped at offset `stopped`."""
        if stopped < block.start + len(block.data):
            self._blocks[ledger, stopped] = block
            while len(self._blocks) > self._blocks_max:
                self._blocks.popitem(last=False)

    def forget(self, ledgers: Sequence[int]) -> None:
        """Drop the blocks of dropped ledgers."""
        gone = frozenset(ledgers)
        for key in [key for key in self._blocks if key[0] in gone]:
            del self._blocks[key]
