from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import ChecksumError, CorruptDataError, UnsupportedFeatureError
from anabranch.protocol.entry.batches import MessageBatch
from anabranch.protocol.entry.compression import Compression
from anabranch.protocol.entry.entries import decode_columns
from anabranch.protocol.entry.singles import build_single
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.spark.decode.entries import Payload, open_entry
from anabranch.spark.decode.spans import Spans, find_spans

LIMIT = 2**24

# Values that look like the start of a message can fool the search for candidates.
FOOLS = st.sampled_from(
    [b"\0\0\0\x06\x12\x02k1\x18\x02", b"\0\0\0\x02\x18\x00" * 3, bytes(40), b"\0\0\0\x05\x0a\0"]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.one_of(st.binary(max_size=60), FOOLS, st.binary(min_size=140, max_size=200)),
            "key": st.one_of(
                st.none(),
                st.text(max_size=12),
                st.binary(max_size=6),
                st.text("k", min_size=130, max_size=140),
            ),
            "sequence_id": st.integers(0, 2**40),
        },
        optional={
            "event_time_ms": st.integers(0, 2**42),
            "properties": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
            "null_value": st.booleans(),
            "ordering_key": st.binary(max_size=5),
        },
    ),
    min_size=1,
    max_size=12,
)
COMPRESSIONS = st.sampled_from(list(Compression))


def build(messages: list[dict[str, Any]], compression: Compression = Compression.NONE) -> bytes:
    batch = MessageBatch()
    for message in messages:
        batch.add(**message)
    return batch.build("p", 1234, compression)


def keys(spans: Spans) -> list[bytes | None]:
    return [
        None if none else spans.raw[start:end]
        for start, end, none in zip(spans.key_starts, spans.key_ends, spans.no_key, strict=True)
    ]


def values(spans: Spans) -> list[bytes | None]:
    return [
        None if none else spans.raw[start:end]
        for start, end, none in zip(spans.header_ends, spans.value_ends, spans.no_value, strict=True)
    ]


@settings(max_examples=300)
@given(st.lists(st.tuples(MESSAGES, COMPRESSIONS), min_size=1, max_size=4))
def test_spans_agree_with_the_reader_of_the_protocol(
    batches: list[tuple[list[dict[str, Any]], Compression]],
) -> None:
    entries = [build(messages, compression) for messages, compression in batches]
    spans = find_spans([open_entry(entry, LIMIT) for entry in entries])
    columns = [decode_columns(entry, LIMIT) for entry in entries]
    assert values(spans) == [value for c in columns for value in c.values]
    plain = [key for key, encoded in zip(keys(spans), spans.encoded_key, strict=True) if not encoded]
    expected = [key for c in columns for key in c.keys]
    assert plain == [key for key, encoded in zip(expected, spans.encoded_key, strict=True) if not encoded]
    assert spans.event_times_ms.tolist() == [t for c in columns for t in c.event_times or [0] * c.count]
    assert spans.properties.tolist() == [bool(p) for c in columns for p in c.properties or [{}] * c.count]


@given(
    value=st.binary(max_size=50),
    key=st.one_of(st.none(), st.text(max_size=5), st.binary(max_size=5)),
    event_time_ms=st.integers(0, 2**41),
    null_value=st.booleans(),
)
def test_a_message_outside_a_batch_is_read_like_a_batch_of_one(
    value: bytes, key: str | bytes | None, event_time_ms: int, null_value: bool
) -> None:
    entry = build_single(
        value, key, 7, "p", 99, event_time_ms=event_time_ms, null_value=null_value, properties={"a": "b"}
    )
    payload = open_entry(entry, LIMIT)
    spans = find_spans([payload])
    assert (payload.count, payload.publish_time_ms) == (1, 99)
    assert values(spans) == [None if null_value else value]
    assert spans.event_times_ms.tolist() == [event_time_ms]
    assert spans.properties.tolist() == [True]
    assert spans.no_key.tolist() == [key is None]


def test_messages_with_large_values_are_found() -> None:
    messages = [{"value": bytes([n]) * 3000, "key": f"k{n}", "sequence_id": n} for n in range(20)]
    spans = find_spans([open_entry(build(messages), LIMIT)])
    assert values(spans) == [message["value"] for message in messages]


def test_fields_may_come_in_any_order() -> None:
    # Sequence id, event time, payload size, key: legal, though no writer we know does it.
    header = b"\x40\x05\x28\x09\x18\x03\x12\x02k1"
    spans = find_spans([Payload(len(header).to_bytes(4, "big") + header + b"abc", 1, 0)])
    assert (keys(spans), values(spans), spans.event_times_ms.tolist()) == ([b"k1"], [b"abc"], [9])


def test_a_message_that_compaction_took_out_is_marked() -> None:
    header = pb.SingleMessageMetadata(
        payload_size=0, compacted_out=True, partition_key="k"
    ).SerializeToString()
    spans = find_spans([Payload(len(header).to_bytes(4, "big") + header, 1, 0)])
    assert spans.compacted.tolist() == [True]


@settings(max_examples=200)
@given(MESSAGES, st.data())
def test_damaged_payloads_are_refused_or_read_as_something_never_beyond_their_end(
    messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    payload = open_entry(build(messages), LIMIT)
    damaged = bytearray(payload.data)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(1, len(damaged))) :]
    try:
        spans = find_spans([Payload(bytes(damaged), payload.count, 0)])
    except CorruptDataError:
        return
    assert len(spans.value_ends) == payload.count
    assert int(spans.value_ends.max()) == len(damaged)
    assert np.all(spans.key_ends <= len(damaged))


def test_a_wrong_count_is_refused() -> None:
    payload = open_entry(build([{"value": b"v", "key": "k", "sequence_id": n} for n in range(3)]), LIMIT)
    for count in (2, 4):
        with pytest.raises(CorruptDataError):
            find_spans([payload._replace(count=count)])


def test_a_wrong_split_of_counts_over_payloads_is_refused() -> None:
    payload = open_entry(build([{"value": b"v", "key": "k", "sequence_id": n} for n in range(3)]), LIMIT)
    with pytest.raises(CorruptDataError):
        find_spans([payload._replace(count=2), payload._replace(count=4)])


def test_a_bad_checksum_is_refused() -> None:
    entry = bytearray(build([{"value": b"v", "key": "k", "sequence_id": 0}]))
    entry[-1] ^= 1
    with pytest.raises(ChecksumError):
        open_entry(bytes(entry), LIMIT)


@pytest.mark.parametrize("more", [{"num_chunks_from_msg": 2, "chunk_id": 0}, {"encrypted": True}])
def test_chunks_and_encrypted_entries_are_refused(more: dict[str, Any]) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    if more.pop("encrypted", False):
        metadata.encryption_keys.add(key="k", value=b"v")
    for name, value in more.items():
        setattr(metadata, name, value)
    with pytest.raises(UnsupportedFeatureError):
        open_entry(build_entry(metadata.SerializeToString(), b"x"), LIMIT)
