"""The CRC-32C of the bytes behind a prefix, without a copy of these bytes.

The checksum of an entry covers the bytes behind it. The library sums whole objects only, and a slice of a
large entry costs as much as the sum itself.
"""

from __future__ import annotations

from typing import Final

from google_crc32c import extend as _extend_crc32c
from google_crc32c import value as _crc32c

SLICED_BYTES_MAX: Final = 16 * 2**10
"""Up to this size a copy costs less than the steps back through the prefix."""

_ONES: Final = 0xFFFF_FFFF


def _steps_back() -> list[tuple[int, int]]:
    """Return how to undo one byte of input, by the highest byte of the register after it.

    A step is an index in the table of CRC-32C and the value there; the highest bytes of all values differ.
    """
    found = [(0, 0)] * 256
    for byte in range(256):
        index, value = byte ^ 0xFF, _crc32c(bytes((byte,))) ^ _ONES ^ 0x00FF_FFFF
        found[value >> 24] = index, value
    return found


_STEPS_BACK: Final = _steps_back()


def crc32c_behind(prefix_bytes: int, data: bytes) -> int:
    """Return the CRC-32C of `data` without its first bytes."""
    if len(data) <= SLICED_BYTES_MAX:
        return int(_crc32c(data[prefix_bytes:]))
    # Start with the register that the prefix turns into that of an empty sum, and sum all bytes.
    register = _ONES
    for byte in data[prefix_bytes - 1 :: -1] if prefix_bytes else b"":
        index, value = _STEPS_BACK[register >> 24]
        register = (register ^ value) << 8 | index ^ byte
    return int(_extend_crc32c(register ^ _ONES, data))
