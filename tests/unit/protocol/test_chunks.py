"""Cutting a message into chunks and joining them again."""

from __future__ import annotations

import pytest

from anabranch.client.decide.consuming.chunks import EXPIRY_S, ChunkAssembly
from anabranch.errors import CorruptDataError, MessageTooBigError
from anabranch.protocol.chunks import chunk_in, join_chunks, split_entry
from anabranch.protocol.compression import Compression
from anabranch.protocol.entries import decode_columns
from anabranch.protocol.singles import build_single


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("size", [1, 1000, 4096, 100_001])
def test_joining_undoes_splitting(size: int, compression: Compression) -> None:
    value = bytes(n * n % 251 for n in range(size))
    entry = build_single(value, "k", 7, "me", 1, properties={"a": "b"}, compression=compression)
    chunks = split_entry(entry, 1024)
    assert all(len(chunk) <= 1024 for chunk in chunks)
    assert [chunk_in(chunk)[1:] for chunk in chunks] == [
        ("me-7", number, len(chunks)) for number in range(len(chunks))
    ]
    columns = decode_columns(join_chunks(chunks), 2**20)
    assert (columns.values, columns.keys, columns.properties) == ([value], [b"k"], [{"a": "b"}])


def test_a_missing_chunk_and_properties_without_room_are_refused() -> None:
    chunks = split_entry(build_single(b"x" * 5000, "k", 7, "me", 1), 1024)
    with pytest.raises(CorruptDataError, match="declare"):
        join_chunks(chunks[:-1])
    with pytest.raises(MessageTooBigError, match="properties"):
        split_entry(build_single(b"x", "k", 7, "me", 1, properties={"a": "b" * 2000}), 1024)


def chunks_of(producer: str, sequence: int) -> list[bytes]:
    return split_entry(build_single(b"%d" % sequence * 2000, "k", sequence, producer, 1), 1024)


def test_messages_of_several_producers_are_joined_side_by_side() -> None:
    assembly, one, two = ChunkAssembly(), chunks_of("one", 1), chunks_of("two", 2)
    assert len(one) == len(two) == 3
    places = iter((1, n) for n in range(10))
    found = []
    for chunk in (one[0], two[0], one[1], one[2], two[1], two[2]):
        whole = assembly.add(next(places), chunk, 0.0)
        if whole is not None:
            found.append((decode_columns(whole.entry, 2**20).values, whole.places))
    assert found == [
        ([b"1" * 2000], ((1, 0), (1, 2), (1, 3))),
        ([b"2" * 2000], ((1, 1), (1, 4), (1, 5))),
    ]
    assert (assembly.orphans, bool(assembly)) == ([], False)


def test_a_message_that_is_sent_again_replaces_its_first_chunks() -> None:
    assembly, chunks = ChunkAssembly(), chunks_of("one", 1)
    for number, chunk in enumerate((chunks[0], chunks[1], chunks[0], chunks[1])):
        assert assembly.add((1, number), chunk, 0.0) is None
    assert assembly.orphans == [(1, 0), (1, 1)]
    assert assembly.begun_before((1, 3))
    assert not assembly.begun_before((1, 2))
    whole = assembly.add((1, 4), chunks[2], 0.0)
    assert whole is not None
    assert whole.places == ((1, 2), (1, 3), (1, 4))


def test_chunks_without_a_beginning_or_an_end_are_orphans() -> None:
    assembly, chunks = ChunkAssembly(), chunks_of("one", 1)
    assert assembly.add((1, 0), chunks[1], 0.0) is None
    assert assembly.add((1, 1), chunks[0], 5.0) is None
    assembly.expire(EXPIRY_S)
    assert assembly.orphans == [(1, 0)]
    assembly.expire(EXPIRY_S + 5.0)
    assert assembly.orphans == [(1, 0), (1, 1)]
    assert not assembly
