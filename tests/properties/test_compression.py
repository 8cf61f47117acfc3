"""Laws of compression: decompressing undoes compressing, and damage never gives a wrong size."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import CompressionError
from anabranch.protocol.entry.compression import Compression, compress, decompress

LIMIT = 2**20


@given(st.sampled_from(Compression), st.binary(max_size=2000))
def test_compression_comes_back(kind: Compression, data: bytes) -> None:
    assert decompress(kind, compress(kind, data), len(data), LIMIT) == data


@settings(max_examples=400)
@given(
    st.sampled_from([Compression.LZ4, Compression.ZLIB, Compression.ZSTD, Compression.SNAPPY]),
    st.binary(max_size=300),
    st.data(),
)
def test_damaged_compression_gives_the_declared_size_or_an_error(
    kind: Compression, data: bytes, choices: st.DataObject
) -> None:
    packed = bytearray(compress(kind, data))
    for _ in range(choices.draw(st.integers(0, 3))):
        packed[choices.draw(st.integers(0, len(packed) - 1))] = choices.draw(st.integers(0, 255))
    size = choices.draw(st.sampled_from([len(data), 0, 10, 100_000]))
    with suppress(CompressionError):
        assert len(decompress(kind, bytes(packed), size, LIMIT)) == size
