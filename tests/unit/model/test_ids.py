from __future__ import annotations

import pickle

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.model.ids import EARLIEST, LATEST, MessageId, Position


def test_the_published_example_has_these_bytes() -> None:
    id_ = MessageId(3, 5, 7)
    golden = "0000000000000003 00000006 080510073000 00000000 ffffffff ffffffff"
    assert id_.to_bytes() == bytes.fromhex(golden)
    assert MessageId.from_bytes(bytes.fromhex(golden)) == id_


def test_classic_bytes_write_partition_and_batch_only_when_there() -> None:
    assert MessageId(0, 5, 7).classic_bytes() == bytes.fromhex("080510073000")
    assert MessageId(0, 5, 7, 2, 10, 1).classic_bytes() == bytes.fromhex("0805 1007 1801 2002 300a")
    assert MessageId(0, 300, 7).classic_bytes() == bytes.fromhex("08ac02 1007 3000")


def test_the_sentinels_are_negative_one_and_the_largest_number() -> None:
    earliest, latest = MessageId.earliest(), MessageId.latest()
    assert earliest.position == EARLIEST == (-1, -1)
    assert latest.position == LATEST == (2**63 - 1, 2**63 - 1)
    assert earliest.classic_bytes() == bytes.fromhex("08" + "ff" * 9 + "01" + "10" + "ff" * 9 + "01" + "3000")
    assert latest.classic_bytes() == bytes.fromhex("08" + "ff" * 8 + "7f" + "10" + "ff" * 8 + "7f" + "3000")
    for sentinel in (earliest, latest):
        assert MessageId.from_bytes(sentinel.to_bytes()) == sentinel


def test_the_last_two_parts_may_be_missing() -> None:
    whole = MessageId(3, 5, 7, vector=((3, MessageId(3, 5, 7)),)).to_bytes()
    assert MessageId.from_bytes(whole[:-4]).topic is None
    assert MessageId.from_bytes(whole[:-8]).vector == ((3, MessageId(3, 5, 7)),)


def test_everything_an_id_carries_survives_its_bytes() -> None:
    vector = ((1, MessageId(1, 2, 3, 4, 5)), (2, MessageId(2, 9, 9)))
    id_ = MessageId(1, 2, 3, 4, 5, 6, vector, "topic://t/n/x", (("topic://t/n/y", vector),), Position(2, 1))
    back = MessageId.from_bytes(id_.to_bytes())
    assert back == id_
    for name in ("batch_size", "partition", "vector", "topic", "cross", "first_chunk"):
        assert getattr(back, name) == getattr(id_, name)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 11,
        bytes.fromhex("0000000000000003 00000006 0805"),
        bytes.fromhex("0000000000000003 ffffffff"),
        bytes.fromhex("0000000000000003 00000002 0805 00000000"),
        bytes.fromhex("0000000000000003 00000006 080510073000 7fffffff"),
        bytes.fromhex("0000000000000003 00000006 080510073000 fffffffe"),
        bytes.fromhex("0000000000000003 00000006 080510073000 00000000 00000001 ff ffffffff"),
        bytes.fromhex("0000000000000003 00000006 080510073000 00000000 ffffffff 7fffffff"),
        bytes.fromhex("0000000000000003 00000006 080510073000 00000000 ffffffff ffffffff 00"),
        bytes.fromhex("0000000000000003 00000003 0b0510"),
    ],
)
def test_broken_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidConfigurationError):
        MessageId.from_bytes(data)


def test_unknown_fields_of_a_classic_id_are_skipped() -> None:
    ack_set_and_strangers = "0805 1007 2a0101 4805 4d00000000 510000000000000000"
    data = bytes.fromhex(f"0000000000000003 00000017 {ack_set_and_strangers}")
    assert MessageId.from_bytes(data) == MessageId(3, 5, 7)


def test_order_is_segment_then_position_then_place_in_the_batch() -> None:
    ordered = [
        MessageId(0, 9, 9),
        MessageId(1, 2, 3),
        MessageId(1, 2, 3, 0, 2),
        MessageId(1, 2, 3, 1, 2),
        MessageId(1, 2, 4),
        MessageId(1, 3, 0),
    ]
    shuffled = [ordered[place] for place in (3, 0, 5, 1, 4, 2)]
    assert sorted(shuffled) == ordered
    assert ordered[0] <= ordered[0] < ordered[1]
    assert ordered[1] >= ordered[1] > ordered[0]


def test_equality_does_not_look_at_what_an_id_carries_along() -> None:
    plain, laden = MessageId(1, 2, 3), MessageId(1, 2, 3, topic="x", vector=((1, MessageId(1, 2, 3)),))
    assert plain == laden
    assert hash(plain) == hash(laden)
    assert plain != MessageId(1, 2, 3, 0)
    assert plain != "1/2:3"


def test_ids_print_and_pickle() -> None:
    assert str(MessageId(1, 2, 3, 4)) == "1/2:3:4"
    assert str(Position(2, 3)) == "2:3"
    assert pickle.loads(pickle.dumps(MessageId(1, 2, 3))) == MessageId(1, 2, 3)
