from __future__ import annotations

from base64 import b64encode

import pytest

from anabranch.errors import RemoteProtocolError
from anabranch.protocol.entry.outer import Outer, read_outer
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb


def outer_of(**fields: object) -> Outer:
    known: dict[str, object] = {"producer_name": "p", "sequence_id": 7, "publish_time": 1700000000000}
    metadata = pb.MessageMetadata(**(known | fields))  # type: ignore[arg-type]
    return read_outer(build_entry(metadata.SerializeToString(), b"payload"))


def test_a_plain_message_counts_as_one() -> None:
    outer = outer_of()
    assert outer == Outer(
        "p", 7, 0, 1, False, outer.sticky_hash, outer.sticky_hash, outer.sticky_hash, False, 0, 1700000000000
    )


def test_a_batch_of_one_is_still_a_batch() -> None:
    assert outer_of(num_messages_in_batch=1)[3:5] == (1, True)
    assert outer_of(num_messages_in_batch=5, highest_sequence_id=11)[2:5] == (11, 5, True)


@pytest.mark.parametrize(("key", "bucket"), [("key1", 0x0125), ("order-42", 0xA18E), ("", 1)])
def test_the_sticky_hash_is_that_of_the_key(key: str, bucket: int) -> None:
    assert outer_of(partition_key=key).sticky_hash == bucket


def test_the_ordering_key_goes_before_the_key() -> None:
    assert outer_of(partition_key="a", ordering_key=b"key1").sticky_hash == 0x0125
    assert outer_of(partition_key="a", ordering_key=b"").sticky_hash == 1


def test_a_binary_key_is_hashed_as_the_bytes_it_stands_for() -> None:
    text = b64encode(b"key1").decode()
    assert outer_of(partition_key=text, partition_key_b64_encoded=True).sticky_hash == 0x0125
    assert outer_of(partition_key=text).sticky_hash != 0x0125


def test_a_key_that_only_claims_to_be_base64_is_hashed_as_it_is() -> None:
    assert (
        outer_of(partition_key="key1!", partition_key_b64_encoded=True).sticky_hash
        == outer_of(partition_key="key1!").sticky_hash
    )


def test_without_a_key_producer_and_sequence_id_are_hashed() -> None:
    assert outer_of().sticky_hash == outer_of(partition_key="p-7").sticky_hash


def test_a_stamp_decides_the_bucket_also_when_it_is_zero() -> None:
    assert outer_of(entry_hash_min=5, entry_hash_max=9)[6:8] == (5, 9)
    assert outer_of(entry_hash_min=0, entry_hash_max=0)[6:8] == (0, 0)
    assert outer_of(entry_hash_min=5)[6:8] == (5, 5)
    unstamped = outer_of(entry_hash_max=9)
    assert unstamped[6:8] == (unstamped.sticky_hash, unstamped.sticky_hash)


def test_presence_makes_a_marker() -> None:
    assert outer_of(marker_type=0).marker
    assert outer_of(marker_type=21).marker
    assert not outer_of(producer_name="\u0120").marker


def test_a_delivery_time_is_told() -> None:
    assert outer_of(deliver_at_time=1700000099999).deliver_at_ms == 1700000099999


@pytest.mark.parametrize("lacking", ["producer_name", "sequence_id", "publish_time"])
def test_metadata_without_a_required_field_is_refused(lacking: str) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    metadata.ClearField(lacking)  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match="lacks a required field"):
        read_outer(build_entry(metadata.SerializePartialToString(), b""))


@pytest.mark.parametrize("metadata", [b"\x0a\x05p", b"\x0a\x02\xff\xfe\x10\x01\x18\x01", b"\xff"])
def test_unreadable_metadata_is_refused(metadata: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_outer(build_entry(metadata, b""))
