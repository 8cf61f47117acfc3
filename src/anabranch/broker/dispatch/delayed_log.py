"""The delayed entries of a log that needs no order: which are in memory, and which blocks are read later.

A block is a run of ordinals. Each block knows when the first of its delayed entries is due, so that entries
may stay on disk until shortly before. This bounds the memory, and a restart passes over the blocks that have
no other pending entries: the note lists them. Acknowledgements only grow and times do not change, so a note
stays true. This module reads nothing; the caller does.

For example, blocks have 8,192 entries. Entry 10 of block 0 is due in an hour and entry 9,000 of block 1 in
two. While fewer than 2,000,000 delayed entries are in memory, both are; beyond that, only entries due within
10 minutes are, and block 0 is read again 30 seconds before the hour is over. If everything below ordinal
20,000 was read and nothing else of it is pending, the note lists both blocks with these times. A restart from
it finds that `passed(0)` is 16,384, and starts to read there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from anabranch.broker.dispatch.delays import Delayed, Delays

BLOCK_BITS: Final = 13
BLOCK_ENTRIES: Final = 2**BLOCK_BITS

MEMORY_ENTRIES: Final = 2_000_000
"""Delayed entries in memory from which on only those of the next minutes are added to it."""

WINDOW_MS: Final = 600_000
"""How far ahead delayed entries are kept in memory when many are there."""

LEAD_MS: Final = 30_000
"""How long before the time of its first entry a block is read."""

NEVER_MS: Final = 2**63 - 1

_MAGIC: Final = b"delays1\n"
_CLAIM: Final = struct.Struct("<QQ")


@dataclass(slots=True)
class _Block:
    """The delayed entries of one block; those due until `kept_until_ms` are, or were, in memory."""

    first_ms: int
    kept_until_ms: int
    in_memory: int = 0
    on_disk: int = 0
    read_ms: int = NEVER_MS
    """When the first entry is due that is not in memory."""


@dataclass(slots=True)
class _Scan:
    """A block being read again: entries due after `after_ms` are new, those until `until_ms` are kept."""

    number: int
    next: int
    after_ms: int
    until_ms: int


class DelayedLog:
    """Delayed entries by time, and by block of the log."""

    def __init__(self, memory_entries: int = MEMORY_ENTRIES, block_bits: int = BLOCK_BITS) -> None:
        self._bits = block_bits
        self._memory_entries = memory_entries
        self._queue = Delays()
        self._blocks: dict[int, _Block] = {}
        self._unread: dict[int, int] = {}
        """Blocks from the note of which nothing was read, with the time of the first entry."""
        self._scan: _Scan | None = None
        self._next_read_ms: int | None = None
        """When the next block must be read; None while it is not known."""

    def __len__(self) -> int:
        """Delayed entries in memory."""
        return len(self._queue)

    @property
    def count(self) -> int:
        """Delayed entries in memory and on disk, without those of blocks that were not read yet."""
        return sum(block.in_memory + block.on_disk for block in self._blocks.values())

    @property
    def waiting(self) -> bool:
        """Whether any entry waits for its time, in memory or not."""
        return bool(self._queue) or bool(self._blocks) or bool(self._unread) or self._scan is not None

    @property
    def next_ms(self) -> int | None:
        """When `pop_due` or `to_read` has the next result."""
        read_ms = self._read_ms() - LEAD_MS if self._scan is None else NEVER_MS
        due_ms = self._queue.next_ms
        first = min(read_ms, NEVER_MS if due_ms is None else due_ms)
        return None if first >= NEVER_MS - LEAD_MS else first

    def clear(self) -> None:
        """Forget everything."""
        self._queue.clear()
        self._blocks.clear()
        self._unread.clear()
        self._scan = None
        self._next_read_ms = None

    def add(self, at_ms: int, ordinal: int, now_ms: int) -> None:
        """Take note of an entry that is met for the first time and due later."""
        number = ordinal >> self._bits
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block(at_ms, self._horizon(now_ms))
        self._put(block, at_ms, ordinal)

    def pop_due(self, now_ms: int, limit: int) -> list[Delayed]:
        """Take the entries in memory whose time has come, at most `limit`."""
        due = self._queue.pop_due(now_ms, limit)
        for one in due:
            number = one.ordinal >> self._bits
            block = self._blocks[number]
            block.in_memory -= 1
            if not block.in_memory and not block.on_disk and not self._is_scanned(number):
                del self._blocks[number]
        return due

    @property
    def passes(self) -> bool:
        """Whether `passed` passes over any block."""
        return bool(self._unread)

    def passed(self, ordinal: int) -> int:
        """Return the first ordinal from this one on that is in no block to be read later."""
        while self._unread and ordinal >> self._bits in self._unread:
            ordinal = ((ordinal >> self._bits) + 1) << self._bits
        return ordinal

    def to_read(self, now_ms: int) -> tuple[int, int] | None:
        """First and end ordinal of a block that must be read now; the caller reports each pending entry."""
        scan = self._scan
        if scan is None and self._read_ms() - LEAD_MS <= now_ms:
            scan = self._scan = self._begin_scan(now_ms)
        return None if scan is None else (scan.next, (scan.number + 1) << self._bits)

    def found(self, at_ms: int, ordinal: int, now_ms: int) -> bool:
        """Report a pending entry of the block that is read; whether it goes out at once."""
        scan = self._scan
        assert scan is not None
        if at_ms <= scan.after_ms:
            # It went out, or waits in memory, since an earlier reading of the block.
            return False
        if at_ms <= now_ms:
            return True
        block = self._blocks.get(scan.number)
        if block is None:
            block = self._blocks[scan.number] = _Block(at_ms, scan.until_ms)
        self._put(block, at_ms, ordinal)
        return False

    def read_until(self, ordinal: int, end: int) -> None:
        """Report how far the block of `to_read` is read, and where the part that exists ends."""
        scan = self._scan
        assert scan is not None
        scan.next = ordinal
        if ordinal >= end or ordinal >> self._bits > scan.number:
            self._scan = None
            block = self._blocks.get(scan.number)
            if block is not None and not block.in_memory and not block.on_disk:
                del self._blocks[scan.number]

    def note(self, end: int, busy: Iterable[int], now_ms: int) -> bytes:
        """Encode what a restart needs, when all before `end` is read; `busy` are entries due or delivered.

        Empty when a restart finds the delayed entries soon enough by itself.
        """
        mixed = {ordinal >> self._bits for ordinal in busy}
        claims = dict(self._unread)
        for number, block in self._blocks.items():
            whole = (number + 1) << self._bits <= end and number not in mixed
            if whole and not self._is_scanned(number) and block.first_ms > now_ms + LEAD_MS:
                claims[number] = block.first_ms
        packed = (_CLAIM.pack(number << self._bits, first) for number, first in sorted(claims.items()))
        return _MAGIC + b"".join(packed) if claims else b""

    def load(self, note: bytes) -> None:
        """Start from a note; any other bytes say nothing."""
        self.clear()
        if is_note(note) and not (len(note) - len(_MAGIC)) % _CLAIM.size:
            pairs = _CLAIM.iter_unpack(note[len(_MAGIC) :])
            self._unread = {first >> self._bits: first_ms for first, first_ms in pairs}

    def _put(self, block: _Block, at_ms: int, ordinal: int) -> None:
        block.first_ms = min(block.first_ms, at_ms)
        if at_ms <= block.kept_until_ms:
            block.in_memory += 1
            self._queue.add(at_ms, ordinal)
            return
        block.on_disk += 1
        block.read_ms = min(block.read_ms, at_ms)
        if self._next_read_ms is not None:
            self._next_read_ms = min(self._next_read_ms, at_ms)

    def _horizon(self, now_ms: int) -> int:
        return NEVER_MS if len(self._queue) < self._memory_entries else now_ms + WINDOW_MS

    def _is_scanned(self, number: int) -> bool:
        return self._scan is not None and self._scan.number == number

    def _read_ms(self) -> int:
        if self._next_read_ms is None:
            on_disk = min((block.read_ms for block in self._blocks.values()), default=NEVER_MS)
            self._next_read_ms = min(on_disk, min(self._unread.values(), default=NEVER_MS))
        return self._next_read_ms

    def _begin_scan(self, now_ms: int) -> _Scan:
        """Read the block whose first entry not in memory is due first."""
        self._next_read_ms = None
        number, first_ms = min(self._unread.items(), key=lambda item: item[1], default=(-1, NEVER_MS))
        for at, block in self._blocks.items():
            if block.read_ms < first_ms:
                number, first_ms = at, block.read_ms
        self._unread.pop(number, None)
        block = self._blocks.get(number, _Block(NEVER_MS, -1))
        scan = _Scan(number, number << self._bits, block.kept_until_ms, self._horizon(now_ms))
        block.kept_until_ms = scan.until_ms
        block.on_disk, block.read_ms = 0, NEVER_MS
        return scan


def is_note(note: bytes) -> bool:
    """Return whether bytes are a note of this module."""
    return note.startswith(_MAGIC)
