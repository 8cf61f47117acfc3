"""Protobuf's variable-length integers, for the few places that write them by hand."""

from __future__ import annotations

from typing import Final

_MASK: Final = 2**64 - 1
_SHORT: Final = tuple(bytes((n,)) for n in range(0x80)) + tuple(
    bytes((n & 0x7F | 0x80, n >> 7)) for n in range(0x80, 0x4000)
)


def encode_varint(number: int) -> bytes:
    """`number` as protobuf writes it; a negative one takes ten bytes, as in every 64-bit field."""
    if 0 <= number < 0x4000:
        return _SHORT[number]
    number &= _MASK
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
