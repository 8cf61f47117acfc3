"""Which entries a log refuses, by their outer metadata alone."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.serving.log.entry_checks import ANY_CLASSIC_ENTRY, EntryRules, fault_of
from anabranch.model.hashing import bucket_hash, key_hash, segment_hash
from anabranch.model.ranges import HashRange
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.commands import Send
from anabranch.protocol.compression import Compression
from anabranch.protocol.frames import build_entry
from anabranch.protocol.gaps import GAP_PRODUCER, gap_mark, is_gap
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.lies import HASHES, HIDDEN, KEY, VISIBLE, Lie
from tests.harness.wire import single

SPLITS = (0x4000, 0x8000)
SEGMENT = EntryRules(SPLITS, is_segment=True)
SLOT = segment_hash(key_hash(KEY))
HASH = bucket_hash(key_hash(KEY))


def sent(entry: bytes, count: int = 1, *, is_chunk: bool = False) -> Send:
    return Send(1, 5, count, 0, is_chunk, False, 0, 0, entry)


def with_metadata(tail: bytes = b"", payload: bytes = b"payload", **fields: Any) -> Send:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1, **fields)
    return sent(build_entry(metadata.SerializeToString() + tail, payload))


def stamped(low: int, high: int, tail: bytes = b"") -> Send:
    return with_metadata(tail, entry_hash_min=low, entry_hash_max=high)


@pytest.mark.parametrize("lie", VISIBLE, ids=str)
def test_a_lie_that_can_be_seen_is_refused(lie: Lie) -> None:
    assert fault_of(lie.tell("p", 5), SEGMENT) is not None


@pytest.mark.parametrize("lie", [*HIDDEN, *HASHES], ids=str)
def test_a_lie_that_does_not_concern_a_classic_topic_is_stored(lie: Lie) -> None:
    assert fault_of(lie.tell("p", 5), ANY_CLASSIC_ENTRY) is None


def test_a_stamp_must_lie_in_one_bucket() -> None:
    assert fault_of(stamped(0, 0x3FFF), SEGMENT) is None
    assert fault_of(stamped(0x8000, 0xFFFF), SEGMENT) is None
    assert fault_of(stamped(0x3FFF, 0x4000), SEGMENT) is not None
    assert fault_of(stamped(0, 0xFFFF), SEGMENT) is not None
    assert fault_of(sent(single(b"x", 1, key="k")), SEGMENT) is None


def test_bytes_that_look_like_a_stamp_do_not_hide_the_real_one() -> None:
    lookalike = b"\x88\x02\x05\x90\x02\x05\x00"
    field = b"\x82\x01" + bytes([len(lookalike)]) + lookalike
    assert fault_of(stamped(0x3FFF, 0x4000, field), SEGMENT) is not None
    assert fault_of(stamped(0x4000, 0x4001, field), SEGMENT) is None


def test_a_key_must_lie_in_the_range_of_its_segment() -> None:
    here = EntryRules(is_segment=True, ring=HashRange(SLOT, SLOT))
    elsewhere = EntryRules(is_segment=True, ring=HashRange(SLOT - 1, SLOT - 1))
    keyed = with_metadata(partition_key=KEY)
    assert fault_of(keyed, here) is None
    assert fault_of(keyed, elsewhere) is not None
    assert fault_of(with_metadata(), elsewhere) is None, "a message without a key may go anywhere"
    assert fault_of(with_metadata(slot=SLOT - 1), elsewhere) is None
    assert fault_of(with_metadata(slot=SLOT), elsewhere) is not None


def test_a_stamp_covers_the_key_of_its_entry() -> None:
    assert (
        fault_of(with_metadata(partition_key=KEY, entry_hash_min=HASH, entry_hash_max=HASH), SEGMENT) is None
    )
    ordered: dict[str, Any] = {"ordering_key": KEY.encode(), "partition_key": "another"}
    assert fault_of(with_metadata(**ordered, entry_hash_min=HASH), SEGMENT) is None
    assert fault_of(with_metadata(**ordered, entry_hash_min=HASH ^ 1), SEGMENT) is not None


@pytest.mark.parametrize("hashed", ["/w==", b"\xff"])
def test_a_binary_key_may_be_stamped_by_its_bytes_or_by_its_text(hashed: str | bytes) -> None:
    stamp = bucket_hash(key_hash(hashed))
    keyed = with_metadata(
        partition_key="/w==", partition_key_b64_encoded=True, entry_hash_min=stamp, entry_hash_max=stamp
    )
    assert fault_of(keyed, SEGMENT) is None


@pytest.mark.parametrize("count", [None, 1, 3])
@pytest.mark.parametrize("kind", Compression)
def test_no_producer_can_store_a_mark_of_the_broker(count: int | None, kind: Compression) -> None:
    packed = pb.CompressionType.ValueType(kind)
    for size in (0, 6, 600):
        metadata = pb.MessageMetadata(
            producer_name=GAP_PRODUCER,
            sequence_id=5,
            publish_time=1,
            num_messages_in_batch=count,
            compression=packed,
            uncompressed_size=size,
        )
        for is_chunk in (False, True):
            if is_chunk:
                metadata.num_chunks_from_msg, metadata.chunk_id = 2, 0
            entry = build_entry(metadata.SerializeToString(), b"")
            stored = fault_of(sent(entry, count or 1, is_chunk=is_chunk), ANY_CLASSIC_ENTRY) is None
            assert not (stored and is_gap(entry))
    assert is_gap(gap_mark(3))


@pytest.mark.parametrize("kind", Compression)
def test_every_honest_batch_is_stored(kind: Compression) -> None:
    batch = MessageBatch()
    batch.add_many([b""] * 1000, [None] * 1000, range(1000))
    assert fault_of(sent(batch.build("p", 1, kind), 1000), ANY_CLASSIC_ENTRY) is None


def test_what_other_clients_send_is_stored() -> None:
    # A batch that is encrypted after it was compressed; a chunk of a compressed message; a tombstone.
    batch = with_metadata(
        payload=b"x" * 200,
        num_messages_in_batch=10,
        compression=pb.LZ4,
        uncompressed_size=600,
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
    )
    chunk = with_metadata(
        num_chunks_from_msg=3,
        chunk_id=1,
        total_chunk_msg_size=21,
        compression=pb.ZSTD,
        uncompressed_size=2**28,
        uuid="p-5",
    )
    assert fault_of(batch._replace(num_messages=10), ANY_CLASSIC_ENTRY) is None
    assert fault_of(chunk._replace(is_chunk=True), ANY_CLASSIC_ENTRY) is None
    assert fault_of(with_metadata(payload=b"", null_value=True), ANY_CLASSIC_ENTRY) is None
    assert fault_of(with_metadata(uncompressed_size=7), ANY_CLASSIC_ENTRY) is None


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x0e\x02\0\0\0\0" + single(b"x", 1),
        build_entry(b"\xff\xff\xff", b""),
        build_entry(b"\x10\x05\x18\x01", b"lacks the name of its producer"),
    ],
)
def test_metadata_that_no_reader_understands_is_refused(entry: bytes) -> None:
    assert fault_of(sent(entry), ANY_CLASSIC_ENTRY) is not None
