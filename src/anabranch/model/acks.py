"""AckSet: the exact set of entries of a log that a subscription has acknowledged.

Entries are identified by ordinals. All entries below `mark` are acknowledged; above it there may be any
number of holes. The set stores the *pending* entries below its highest acknowledged entry as a compressed
bitmap, so that the mark, the next entry to deliver and the backlog are each one look-up. This module knows
nothing of ledgers, disks or consumers.

Example: after `acknowledge([0, 1, 3])` the mark is 2, the top is 4 and there is one hole. The next pending
ordinal from 3 on is 4, and a log that ends at ordinal 6 has a backlog of 3 (ordinals 2, 4 and 5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile

from pyroaring import BitMap64

from anabranch.errors import CorruptDataError

_VERSION = 1
_HEAD = struct.Struct("<BQI")
_PART = struct.Struct("<QI")
_WORD_BYTES = 8
_FEW = 8


class AckSet:
    """A mutable set of acknowledged ordinals. Single messages of an entry can be acknowledged as well."""

    __slots__ = ("_mark", "_parts", "_pending", "_top")

    def __init__(self, mark: int = 0) -> None:
        if mark < 0:
            raise ValueError(f"an ordinal cannot be negative: {mark}")
        # The entry before `_top` is acknowledged; entries from `_top` on are not, except in part. `_pending`
        # holds the unacknowledged ordinals below `_top`; `_mark` is the lowest of them, or `_top`.
        self._mark = mark
        self._top = mark
        self._pending = BitMap64()
        self._parts: dict[int, int] = {}

    @property
    def mark(self) -> int:
        """The lowest ordinal that is not acknowledged."""
        return self._mark

    @property
    def top(self) -> int:
        """One past the highest acknowledged ordinal."""
        return self._top

    @property
    def holes(self) -> int:
        """How many ordinals below the highest acknowledged one are not acknowledged."""
        return len(self._pending)

    @property
    def parts(self) -> int:
        """How many entries are acknowledged in part."""
        return len(self._parts)

    def __contains__(self, ordinal: int) -> bool:
        return ordinal < self._mark or (ordinal < self._top and ordinal not in self._pending)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AckSet):
            return NotImplemented
        same = self._top == other._top and self._parts == other._parts
        return same and bool(self._pending == other._pending)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"AckSet(mark={self._mark}, top={self._top}, holes={self.holes}, parts={self.parts})"

    def acknowledge(self, ordinals: Iterable[int]) -> None:
        """Acknowledge whole entries; repeated acknowledgements change nothing."""
        given = ordinals if isinstance(ordinals, (list, tuple, range)) else list(ordinals)
        if len(given) > _FEW:
            self._acknowledge_many(given)
            return
        for ordinal in given:
            self._acknowledge_one(ordinal)

    def acknowledge_part(self, ordinal: int, remaining: int, count: int) -> bool:
        """Acknowledge messages inside an entry of `count`; a set bit i means message i is still pending.

        An acknowledged message stays acknowledged. Returns whether the whole entry is acknowledged now.
        """
        if count < 1 or ordinal < 0:
            raise ValueError(f"entry {ordinal} with {count} messages cannot be acknowledged in part")
        if ordinal in self:
            return True
        # A client chooses `count`, so the work must not grow with it: each step costs at most as much as the
        # bits given now or earlier.
        left = remaining if remaining.bit_length() <= count else remaining & ((1 << count) - 1)
        before = self._parts.get(ordinal)
        if before is not None:
            left &= before
        if not left:
            self._acknowledge_one(ordinal)
            return True
        if before is not None or left.bit_count() < count:
            self._parts[ordinal] = left
        return False

    def acknowledge_up_to(self, ordinal: int) -> None:
        """Acknowledge all entries below `ordinal`."""
        if ordinal <= self._mark:
            return
        if ordinal >= self._top:
            self._pending.clear()
            self._top = ordinal
        else:
            self._pending.remove_range(self._mark, ordinal)
        if self._parts:
            self._forget_parts(ordinal)
        self._mark = self._pending.min() if self._pending else self._top

    def reset(self, ordinal: int) -> None:
        """Forget everything: from now on exactly the entries below `ordinal` are acknowledged."""
        if ordinal < 0:
            raise ValueError(f"an ordinal cannot be negative: {ordinal}")
        self._pending.clear()
        self._parts.clear()
        self._mark = self._top = ordinal

    def remaining(self, ordinal: int) -> int | None:
        """Bits of the messages still pending in a partly acknowledged entry; None for any other entry."""
        return self._parts.get(ordinal)

    def partly(self, limit: int | None = None) -> list[tuple[int, int]]:
        """Return the partly acknowledged entries, at most `limit`, and the bits of their pending messages."""
        return list(islice(self._parts.items(), limit))

    def next_pending(self, ordinal: int) -> int:
        """Return the first ordinal at or after this one that is not wholly acknowledged."""
        if ordinal >= self._top:
            return ordinal
        try:
            found: int = self._pending.next_set_bit(max(ordinal, 0))
        except ValueError:
            return self._top
        return found

    def pending_from(self, ordinal: int, end: int, limit: int) -> list[int]:
        """Return up to `limit` ordinals, from this one to below `end`, that are not wholly acknowledged."""
        found: list[int] = []
        if ordinal < self._top:
            inside = self._pending.iter_equal_or_larger(max(ordinal, 0))
            found += islice(takewhile(end.__gt__, inside), limit)
        start = max(ordinal, self._top)
        found += range(start, min(end, start + limit - len(found)))
        return found

    def pending_count(self, end: int) -> int:
        """Return how many ordinals below `end` are not wholly acknowledged."""
        if end <= self._mark:
            return 0
        inside: int = self._pending.range_cardinality(0, min(end, self._top))
        return inside + max(0, end - self._top)

    def keep_pending(self, ordinals: BitMap64) -> None:
        """Remove wholly acknowledged ordinals from a set of ordinals; much faster than testing each one."""
        if not ordinals:
            return
        after = ordinals & BitMap64(range(self._top, ordinals.max() + 1))
        ordinals &= self._pending
        ordinals |= after

    def pending_below(self, end: int) -> BitMap64:
        """Return the ordinals below `end` that are not wholly acknowledged, in a bitmap of their own."""
        found = self._pending.copy()
        if end < self._top:
            found.remove_range(end, self._top)
        else:
            found.add_range(self._top, end)
        return found

    def copy(self) -> AckSet:
        copied = AckSet(self._top)
        copied._mark, copied._pending, copied._parts = self._mark, self._pending.copy(), dict(self._parts)
        return copied

    def reopen(self, ordinals: BitMap64) -> None:
        """Make all messages of acknowledged entries pending again."""
        if ordinals:
            assert ordinals.max() < self._top, "an entry that was never acknowledged is pending anyway"
            self._pending.update(ordinals)
            low, high = self._pending.min(), self._top
            # Every entry from the new top on is pending. There may be many, so a binary search finds the top.
            while low < high:
                middle = (low + high) // 2
                if self._pending.range_cardinality(middle, self._top) == self._top - middle:
                    high = middle
                else:
                    low = middle + 1
            self._pending.remove_range(high, self._top)
            self._top = high
            self._mark = self._pending.min() if self._pending else high

    def encode(self) -> bytes:
        """Return the whole set as bytes; the size depends on the number of holes, not on their distance."""
        self._pending.run_optimize()
        pieces = [_HEAD.pack(_VERSION, self._top, len(self._parts))]
        for ordinal, left in self._parts.items():
            bits = left.to_bytes((left.bit_length() + 7) // 8, "little")
            pieces += (_PART.pack(ordinal, len(bits)), bits)
        pieces.append(self._pending.serialize())
        return b"".join(pieces)

    @staticmethod
    def decode(data: bytes | memoryview) -> AckSet:
        """Undo `encode`; raises CorruptDataError for anything else."""
        try:
            return AckSet._decode(bytes(data))
        except (struct.error, ValueError, IndexError, OverflowError) as cause:
            raise CorruptDataError(f"{len(data)} bytes are not an acknowledgement set") from cause

    def _forget_parts(self, end: int) -> None:
        """Forget the partly acknowledged entries from the mark up to `end`, by the cheaper of two loops."""
        if end - self._mark < len(self._parts):
            for ordinal in range(self._mark, end):
                self._parts.pop(ordinal, None)
        else:
            self._parts = {part: left for part, left in self._parts.items() if part >= end}

    def _acknowledge_one(self, ordinal: int) -> None:
        if self._parts:
            self._parts.pop(ordinal, None)
        if ordinal == self._mark:
            if ordinal == self._top:
                self._mark = self._top = ordinal + 1
                return
            self._pending.discard(ordinal)
            self._mark = self._pending.min() if self._pending else self._top
        elif ordinal >= self._top:
            self._pending.add_range(self._top, ordinal)
            self._top = ordinal + 1
        elif ordinal > self._mark:
            self._pending.discard(ordinal)
        elif ordinal < 0:
            raise ValueError(f"an ordinal cannot be negative: {ordinal}")

    def _acknowledge_many(self, ordinals: Sequence[int]) -> None:
        if min(ordinals) < 0:
            raise ValueError(f"an ordinal cannot be negative: {min(ordinals)}")
        highest = max(ordinals)
        if highest >= self._top:
            self._pending.add_range(self._top, highest + 1)
            self._top = highest + 1
        self._pending.difference_update(BitMap64(ordinals))
        if self._parts:
            for ordinal in ordinals:
                self._parts.pop(ordinal, None)
        self._mark = self._pending.min() if self._pending else self._top

    @staticmethod
    def _decode(data: bytes) -> AckSet:
        version, top, parts = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"version {version}")
        offset = _HEAD.size
        acks = AckSet(top)
        for _ in range(parts):
            ordinal, length = _PART.unpack_from(data, offset)
            offset += _PART.size
            bits = data[offset : offset + length]
            if len(bits) != length:
                raise ValueError("cut short")
            acks._parts[ordinal] = int.from_bytes(bits, "little")
            offset += length
        acks._pending = BitMap64.deserialize(data[offset:])
        if acks._pending:
            acks._mark = acks._pending.min()
            if acks._pending.max() >= top - 1:
                raise ValueError("an entry beyond the end is pending")
        return acks


def bits_from_words(words: Sequence[int]) -> int:
    """Return the bit set of the wire's `ack_set`: signed 64-bit words, lowest first."""
    return int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")


def words_from_bits(bits: int) -> list[int]:
    """Undo `bits_from_words`; zero words at the end are left out, as Java does."""
    count = -(-bits.bit_length() // (8 * _WORD_BYTES))
    return list(struct.unpack(f"<{count}q", bits.to_bytes(count * _WORD_BYTES, "little")))


def bits_at(indexes: Sequence[int]) -> int:
    """Return the bit set with these indexes, in time linear in the highest one."""
    found = bytearray(max(indexes, default=0) // 8 + 1)
    for index in indexes:
        found[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(found, "little")


def indexes_of(bits: int) -> list[int]:
    """Undo `bits_at`; the indexes ascend."""
    return [index for index, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]
