"""Payload compression, with a bound on the decompressed size.

A peer chooses the compressed bytes and the declared size, so neither is trusted: a codec gets no more room
than the declared size, and a declared size above the caller's limit is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import cramjam

from anabranch.errors import CompressionError


class Compression(IntEnum):
    """Compression types with their numbers on the wire."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


UNCOMPRESSED_BYTES_MAX: Final = 128 * 2**20
"""Most bytes that a payload may declare before compression; every reader decompresses as much."""

_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 2**10

ROOM_PER_BYTE: Final[Mapping[int, int]] = {
    Compression.NONE: 1,
    # A byte of a length adds at most 255 bytes to a copy.
    Compression.LZ4: 256,
    # The best ratio of Deflate is 1032.
    Compression.ZLIB: 1040,
    # A block of four bytes repeats one byte.
    Compression.ZSTD: _ZSTD_BLOCK_BYTES_MAX // 4,
    # A copy of at most 64 bytes takes at least two bytes.
    Compression.SNAPPY: 32,
}
"""Most bytes that a byte of a compressed payload stands for, rounded up, by compression type."""

_ZSTD_LEVEL: Final = 3
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * 2**20
"""Window that RFC 8878 asks every decoder to support; larger windows are refused."""


_TRIAL_BYTES: Final = 4 * 2**10
_TRIED_BYTES_MIN: Final = 16 * _TRIAL_BYTES
"""Payloads of this size and more are compressed on trial first; for smaller ones a trial costs too much."""


def packed(kind: Compression, payload: bytes) -> bytes | None:
    """Return the compressed payload; None when compressing is not worth the work of both ends.

    A large payload of which a part in the middle shrinks by less than a tenth stays as it is.
    """
    if not kind:
        return None
    if len(payload) >= _TRIED_BYTES_MIN:
        middle = len(payload) // 2
        trial = compress(kind, payload[middle : middle + _TRIAL_BYTES])
        if len(trial) * 10 > _TRIAL_BYTES * 9:
            return None
    found = compress(kind, payload)
    return found if len(found) < len(payload) else None


def compress(kind: Compression, data: bytes) -> bytes:
    """`data` in the form other Pulsar clients read."""
    if kind == Compression.LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if kind == Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    if kind == Compression.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if kind == Compression.ZLIB:
        return zlib.compress(data)
    return data


def decompress(kind: int, data: bytes, size: int, limit: int) -> bytes:
    """Undo `compress`; raises CompressionError unless exactly `size` bytes come out, within `limit`."""
    if kind == Compression.NONE:
        return data
    if size > limit:
        raise CompressionError(f"a payload declares {size} bytes uncompressed; the limit is {limit}")
    if kind not in ROOM_PER_BYTE:
        raise CompressionError(f"compression type {kind} is unknown")
    if size > ROOM_PER_BYTE[kind] * len(data):
        raise CompressionError(f"a payload of {len(data)} bytes declares {size} bytes uncompressed")
    try:
        plain = _decompress(kind, data, size)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise CompressionError(f"a payload that declares {size} bytes is damaged: {error}") from error
    if len(plain) != size:
        raise CompressionError(f"a payload declares {size} bytes and holds {len(plain)}")
    return plain


def _decompress(kind: int, data: bytes, size: int) -> bytes:
    if kind == Compression.ZLIB:
        # Java ends its streams with a flush and no final block, which `zlib.decompress` refuses. One byte
        # more than declared shows that the payload is too long.
        return zlib.decompressobj().decompress(data, size + 1)
    if kind == Compression.LZ4:
        room = bytearray(size)
        return _filled(room, cramjam.lz4.decompress_block_into(data, room, output_len=size))
    if kind == Compression.ZSTD:
        _check_zstd_frame(data, size)
        room = bytearray(size)
        return _filled(room, cramjam.zstd.decompress_into(data, room))
    if cramjam.snappy.decompress_raw_len(data) != size:
        raise CompressionError(f"a payload declares {size} bytes but its Snappy header says otherwise")
    room = bytearray(size)
    return _filled(room, cramjam.snappy.decompress_raw_into(data, room))


def _filled(room: bytearray, count: int) -> bytes:
    return bytes(room) if count == len(room) else bytes(memoryview(room)[:count])


def _check_zstd_frame(data: bytes, size: int) -> None:
    """Refuse a frame with a large window, and a payload that is not exactly one frame.

    The decoder reserves the window of a frame's header before it reads a block, and again for each further
    frame.
    """
    try:
        if data[:4] != _ZSTD_MAGIC:
            raise CompressionError("a payload is not a Zstandard frame")
        descriptor = data[4]
        single_segment = bool(descriptor & 0x20)
        position = 5
        window = 0
        if not single_segment:
            base = 1 << (10 + (data[5] >> 3))
            window = base + (base >> 3) * (data[5] & 7)
            position = 6
        position += (0, 1, 2, 4)[descriptor & 3]
        content_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
        if single_segment:
            window = int.from_bytes(data[position : position + content_bytes], "little")
        if window > max(size, _ZSTD_WINDOW_BYTES_MAX):
            raise CompressionError(f"a Zstandard frame asks for a window of {window} bytes")
        position += content_bytes
        last = False
        while not last:
            header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
            last = bool(header & 1)
            position += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
        position += 4 if descriptor & 4 else 0
    except IndexError:
        raise CompressionError("a payload ends inside its Zstandard frame") from None
    if position != len(data):
        raise CompressionError("a payload is not exactly one Zstandard frame")
