"""Protobuf's variable-length integers, for the modules that write fields by hand.

Two table look-ups cover every number below 2**28; a loop over seven bits at a time would cost more than the
rest of a small frame.
"""

from __future__ import annotations

from typing import Final

_LAST = [bytes((n,)) for n in range(0x80)]
_MORE = [bytes((n | 0x80,)) for n in range(0x80)]

SHORT: Final = (*_LAST, *(low + high for high in _LAST[1:] for low in _MORE))
"""Each number below 2**14, complete."""

MORE: Final = tuple(low + high for high in _MORE for low in _MORE)
"""Each number below 2**14 as the two lowest bytes of a longer one."""


def encode_varint(number: int) -> bytes:
    """`number` as protobuf writes it; a negative number takes ten bytes, as in every 64-bit field."""
    high = number >> 14
    if not high:
        return SHORT[number]
    if 0 < high < 0x4000:
        return MORE[number & 0x3FFF] + SHORT[high]
    number &= 0xFFFFFFFFFFFFFFFF
    parts = []
    while number >= 0x4000:
        parts.append(MORE[number & 0x3FFF])
        number >>= 14
    parts.append(SHORT[number])
    return b"".join(parts)
