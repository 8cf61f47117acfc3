"""Numbers and sized fields in the byte forms of ids and checkpoints."""

from __future__ import annotations

import struct

U64_MASK = 2**64 - 1
INT = struct.Struct(">i")
LONG = struct.Struct(">q")


class BadBytes(Exception):  # noqa: N818 - never leaves the decoders of ids and checkpoints
    """The bytes cannot be decoded; the decoder turns this into an error for its caller."""


class ByteReader:
    """Reads fields one after another; refuses to read past the end."""

    __slots__ = ("data", "offset")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.offset

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            raise BadBytes(f"a length of {length} where {self.left} bytes are left")
        self.offset += length
        return self.data[self.offset - length : self.offset]

    def int32(self) -> int:
        number: int = INT.unpack(self.take(4))[0]
        return number

    def int64(self) -> int:
        number: int = LONG.unpack(self.take(8))[0]
        return number

    def varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number & U64_MASK
        raise BadBytes("a number longer than ten bytes")

    def expect(self, count: int, item_bytes_min: int) -> int:
        """Refuse a count of items that the remaining bytes cannot hold."""
        if not 0 <= count * item_bytes_min <= self.left:
            raise BadBytes(f"a count of {count} where {self.left} bytes are left")
        return count

    def end(self) -> None:
        if self.left:
            raise BadBytes(f"{self.left} bytes too many")


def sized(data: bytes) -> bytes:
    return INT.pack(len(data)) + data


def varint(number: int) -> bytes:
    number &= U64_MASK
    if number < 0x80:
        return bytes((number,))
    pieces = bytearray()
    while number >= 0x80:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)


def signed(number: int) -> int:
    return number - 2**64 if number > 2**63 - 1 else number
