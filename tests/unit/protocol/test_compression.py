from __future__ import annotations

import random
import tracemalloc
import zlib

import cramjam
import pytest

from anabranch.errors import CompressionError
from anabranch.protocol.entry.compression import (
    UNCOMPRESSED_BYTES_MAX,
    Compression,
    compress,
    decompress,
    packed,
)

LIMIT = 5 * 2**20
CODECS = [Compression.LZ4, Compression.ZLIB, Compression.ZSTD, Compression.SNAPPY]
TEXT = b"the water keeps its order; " * 400
NOISE = random.Random(1).randbytes(10_000)


@pytest.mark.parametrize("kind", Compression)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE])
def test_compressed_bytes_come_back(kind: Compression, data: bytes) -> None:
    assert decompress(kind, compress(kind, data), len(data), LIMIT) == data


@pytest.mark.parametrize("kind", CODECS)
def test_a_large_payload_that_hardly_shrinks_is_left_as_it_is(kind: Compression) -> None:
    rng = random.Random(2)
    # Headers and random values: every codec would save a little, and cost both ends more than that.
    rows = b"".join(b"\0\0\0\x10\x12\x09key-%05d" % n + rng.randbytes(300) for n in range(1000))
    assert len(compress(kind, rows)) < len(rows)
    assert packed(kind, rows) is None
    text = TEXT * 20
    assert packed(kind, text) == compress(kind, text)


@pytest.mark.parametrize("kind", CODECS)
def test_a_small_payload_is_compressed_if_it_shrinks_at_all(kind: Compression) -> None:
    mixed = NOISE + TEXT
    assert packed(kind, mixed) == compress(kind, mixed)
    assert packed(kind, NOISE) is None


def test_without_a_codec_nothing_is_compressed() -> None:
    assert packed(Compression.NONE, TEXT) is None


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("difference", [-1, 1, -len(TEXT)])
def test_a_declared_size_that_is_not_the_real_one_is_refused(kind: Compression, difference: int) -> None:
    with pytest.raises(CompressionError):
        decompress(kind, compress(kind, TEXT), len(TEXT) + difference, LIMIT)


@pytest.mark.parametrize("kind", CODECS)
def test_a_declared_size_above_the_limit_is_refused_before_anything_is_unpacked(kind: Compression) -> None:
    with pytest.raises(CompressionError, match="the limit is 100"):
        decompress(kind, b"not even looked at", 101, 100)


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("data", [b"", b"\xff", NOISE[:50], TEXT[:50]])
def test_bytes_of_another_kind_are_refused(kind: Compression, data: bytes) -> None:
    with pytest.raises(CompressionError):
        decompress(kind, data, 1000, LIMIT)


@pytest.mark.parametrize("kind", CODECS)
def test_half_a_payload_is_refused(kind: Compression) -> None:
    packed = compress(kind, NOISE)
    with pytest.raises(CompressionError):
        decompress(kind, packed[: len(packed) // 2], len(NOISE), LIMIT)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(CompressionError, match="type 9 is unknown"):
        decompress(9, b"", 0, LIMIT)


def test_javas_zlib_stream_without_an_end_is_read() -> None:
    packer = zlib.compressobj()
    stream = packer.compress(TEXT) + packer.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(zlib.error):
        zlib.decompress(stream)
    assert decompress(Compression.ZLIB, stream, len(TEXT), LIMIT) == TEXT


@pytest.mark.parametrize("kind", CODECS)
def test_a_bomb_gets_no_more_room_than_it_declares(kind: Compression) -> None:
    bomb = compress(kind, bytes(64 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError):
            decompress(kind, bomb, 100_000, LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def zstd_frame(descriptor: int, *rest: bytes) -> bytes:
    return b"".join((b"\x28\xb5\x2f\xfd", bytes((descriptor,)), *rest))


LAST_EMPTY_BLOCK = b"\x01\x00\x00"


@pytest.mark.parametrize(
    "frame",
    [
        # A window of 128 MiB, then the same as a content size of one segment, in four and in eight bytes.
        zstd_frame(0x00, bytes((17 << 3,)), LAST_EMPTY_BLOCK),
        zstd_frame(0xA0, (2**27).to_bytes(4, "little"), LAST_EMPTY_BLOCK),
        zstd_frame(0xE0, (2**62).to_bytes(8, "little"), LAST_EMPTY_BLOCK),
    ],
)
def test_a_zstandard_frame_may_not_reserve_a_large_window(frame: bytes) -> None:
    with pytest.raises(CompressionError, match="window"):
        decompress(Compression.ZSTD, frame, 100, LIMIT)


def test_a_zstandard_frame_that_lies_about_its_content_is_refused() -> None:
    # One segment that declares 100 bytes, and a block that repeats one byte 100,000 times.
    block = (100_000 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
    with pytest.raises(CompressionError):
        decompress(Compression.ZSTD, zstd_frame(0x20, b"\x64", block), 100, LIMIT)


def test_a_second_zstandard_frame_is_refused() -> None:
    # The decoder would go on with it, and reserve the window that it asks for.
    twice = compress(Compression.ZSTD, TEXT) * 2
    with pytest.raises(CompressionError, match="exactly one"):
        decompress(Compression.ZSTD, twice, 2 * len(TEXT), LIMIT)


@pytest.mark.parametrize("end", range(12))
def test_a_zstandard_header_that_breaks_off_is_refused(end: int) -> None:
    frame = zstd_frame(0xE7, b"1234", (100).to_bytes(8, "little"))
    with pytest.raises(CompressionError):
        decompress(Compression.ZSTD, frame[:end], 100, LIMIT)


def test_a_zstandard_frame_with_a_checksum_is_read() -> None:
    packer = cramjam.zstd.Compressor(3)
    packer.compress(TEXT)
    plain = bytes(packer.finish())
    assert decompress(Compression.ZSTD, plain, len(TEXT), LIMIT) == TEXT


@pytest.mark.parametrize("kind", CODECS)
def test_few_bytes_get_no_room_for_a_declared_size_that_they_cannot_reach(kind: Compression) -> None:
    packed = compress(kind, TEXT)[:60]
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError):
            decompress(kind, packed, UNCOMPRESSED_BYTES_MAX, UNCOMPRESSED_BYTES_MAX)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("size", [1, 100, 5000, 4 * 2**20])
def test_the_best_ratio_of_a_codec_is_within_its_room(kind: Compression, size: int) -> None:
    data = bytes(size)
    assert decompress(kind, compress(kind, data), size, LIMIT) == data
