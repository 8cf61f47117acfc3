from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.protocol.entry.batches import MessageBatch
from anabranch.protocol.entry.compression import Compression
from anabranch.protocol.entry.encryption import encrypted_entry
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.entry.message_sizes import BYTES_MAX, encode_sizes, find_messages
from anabranch.protocol.entry.restamping import entry_metadata, restamped
from anabranch.protocol.frames import metadata_span
from anabranch.protocol.pb import pulsar_pb2 as pb

LIMIT = 5 * 2**20
Messages = list[tuple[bytes, str | bytes | None]]

keys = st.none() | st.text(max_size=140) | st.binary(max_size=140)
messages = st.lists(st.tuples(st.binary(max_size=300), keys), min_size=1, max_size=40)


def entry_of(
    made: Messages,
    first: int = 20_000,
    compression: Compression = Compression.NONE,
) -> bytes:
    batch = MessageBatch()
    values, keys = zip(*made, strict=True)
    batch.add_many(values, keys, range(first, first + len(made)))
    return batch.build("p", 1, compression)


def walked(entry: bytes) -> bytes:
    """The same entry without the sizes, so that its headers are read."""
    return restamped(entry, lambda metadata: metadata.ClearField("message_sizes"))


def content(entry: bytes) -> tuple[object, ...]:
    found = decode_columns(entry, LIMIT)
    return found.count, found.values, found.keys, found.sequence_ids, list(found.batch_indexes)


@given(messages, st.integers(0, 2**40), st.sampled_from([Compression.NONE, Compression.LZ4]))
def test_messages_found_by_their_sizes_are_those_of_the_headers(
    made: Messages, first: int, compression: Compression
) -> None:
    entry = entry_of(made, first, compression)
    assert content(entry) == content(walked(entry))


@given(messages, st.binary(max_size=200))
def test_sizes_that_lie_are_no_reason_to_fail(made: Messages, lie: bytes) -> None:
    honest = walked(entry_of(made))

    def tell(metadata: pb.MessageMetadata) -> None:
        metadata.message_sizes = lie

    assert content(restamped(honest, tell)) == content(honest)


def test_sizes_that_fit_the_payload_but_not_the_headers_are_ignored() -> None:
    honest = entry_of([(b"v" * 8, "k" * n) for n in range(1, 9)])
    sizes = entry_metadata(honest).message_sizes
    payload_at = metadata_span(honest)[1]
    assert find_messages(sizes, 8, honest, payload_at) is not None
    swapped = sizes[:1] + sizes[1:9][::-1] + sizes[9:]
    assert find_messages(swapped, 8, honest, payload_at) is None


def test_a_single_message_is_found_by_its_header() -> None:
    entry = entry_of([(b"v", "k")])
    payload_at = metadata_span(entry)[1]
    header = entry[payload_at + 3 : payload_at + 4]
    assert find_messages(b"\0" + header + b"\1\0\0\0", 1, entry, payload_at) is None


@pytest.mark.parametrize("values", [[b"v"] * 5, [b"v" * n for n in range(5)], [b"v" * 300, *[b""] * 4]])
def test_sizes_are_written_for_usual_headers(values: list[bytes]) -> None:
    entry = entry_of([(value, "key") for value in values])
    spans = find_messages(entry_metadata(entry).message_sizes, 5, entry, metadata_span(entry)[1])
    assert spans is not None
    assert [entry[start:end] for start, end in zip(spans.values, spans.ends, strict=True)] == values


def test_sizes_are_not_written_for_unusual_headers() -> None:
    usual: Messages = [(b"v", "k")] * 10
    assert entry_metadata(entry_of(usual)).message_sizes
    assert entry_metadata(entry_of([*usual, (b"v", b"text")])).message_sizes
    for made in ([*usual, (b"v", b"\xff")], [*usual, (b"v", "k" * 128)], usual[:3]):
        assert not entry_metadata(entry_of(made)).message_sizes
    batch = MessageBatch()
    batch.add_many([b"v"] * 10, ["k"] * 10, range(10))
    batch.add(b"v", "k", 10, {"color": "red"})
    assert not entry_metadata(batch.build("p", 1)).message_sizes


def test_sizes_leave_room_for_other_metadata() -> None:
    assert encode_sizes(b"\x0a" * 1000, range(1000, 2000)) is not None
    assert encode_sizes(b"\x0a" * BYTES_MAX, [1] * BYTES_MAX) is None


def test_a_claim_of_many_messages_costs_nothing() -> None:
    for count in (-1, 0, 10**9):
        assert find_messages(b"\0" + b"\x0a" * 8 + b"\1\0\0\0", count, b"x" * 100, 0) is None


def test_an_encrypted_entry_does_not_tell_the_sizes_of_its_messages() -> None:
    entry = entry_of([(b"v", "k")] * 10)
    sealed = encrypted_entry(entry, b"", b"n" * 12, lambda _, payload: payload)
    assert entry_metadata(entry).message_sizes
    assert not entry_metadata(sealed).message_sizes
