from __future__ import annotations

import pickle

import pytest

from anabranch.errors import InvalidConfigurationError
from anabranch.model.checkpoint import Checkpoint, CheckpointKind
from anabranch.model.ids import MessageId


def test_checkpoint_bytes_are_those_of_the_other_clients() -> None:
    assert Checkpoint.earliest().to_bytes() == b"\x01"
    assert Checkpoint.latest().to_bytes() == b"\x02"
    golden = bytes.fromhex("00 00000001 0000000000000003 00000006 080510073000")
    assert Checkpoint({3: MessageId(3, 5, 7)}).to_bytes() == golden
    assert Checkpoint.from_bytes(golden) == Checkpoint({3: MessageId(3, 5, 7)})
    assert Checkpoint.from_bytes(golden).positions[3].segment == 3


@pytest.mark.parametrize(
    "checkpoint",
    [
        Checkpoint(),
        Checkpoint.earliest(),
        Checkpoint.latest(),
        Checkpoint.at_ms(1_700_000_000_000),
        Checkpoint({3: MessageId(3, 5, 7)}, CheckpointKind.AT_TIME, 1_700_000_000_000),
    ],
)
def test_every_kind_of_checkpoint_survives_bytes_and_pickle(checkpoint: Checkpoint) -> None:
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
    assert pickle.loads(pickle.dumps(checkpoint)) == checkpoint
    assert hash(checkpoint) == hash(Checkpoint.from_bytes(checkpoint.to_bytes()))


@pytest.mark.parametrize("data", [b"", b"\x04", b"\xff", b"\x00", b"\x00\x00\x00\x00\x01", b"\x01\x00"])
def test_broken_checkpoints_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidConfigurationError):
        Checkpoint.from_bytes(data)


def test_positions_of_a_checkpoint_cannot_be_changed() -> None:
    given = {3: MessageId(3, 5, 7)}
    checkpoint = Checkpoint(given)
    given.clear()
    assert list(checkpoint.positions) == [3]
    with pytest.raises(TypeError):
        checkpoint.positions[4] = MessageId(4, 0, 0)  # type: ignore[index]


def test_a_checkpoint_at_an_end_of_the_topic_has_no_positions() -> None:
    with pytest.raises(InvalidConfigurationError):
        Checkpoint({3: MessageId(3, 5, 7)}, CheckpointKind.LATEST)


def test_a_merge_keeps_the_time_its_members_started_at() -> None:
    placed = Checkpoint({1: MessageId(1, 0, 5)}, CheckpointKind.AT_TIME, 9)
    assert Checkpoint.merge([Checkpoint.at_ms(9), placed]) == placed
    with pytest.raises(InvalidConfigurationError):
        Checkpoint.merge([Checkpoint.at_ms(8), placed])


def test_a_merge_takes_the_later_position_of_each_segment() -> None:
    merged = Checkpoint.merge(
        [
            Checkpoint({1: MessageId(1, 0, 5), 2: MessageId(2, 0, 1)}),
            Checkpoint({1: MessageId(1, 0, 3), 3: MessageId(3, 0, 9)}),
            Checkpoint.latest(),
        ]
    )
    assert merged == Checkpoint({1: MessageId(1, 0, 5), 2: MessageId(2, 0, 1), 3: MessageId(3, 0, 9)})


def test_a_merge_of_equal_starts_is_that_start() -> None:
    assert Checkpoint.merge([Checkpoint.earliest(), Checkpoint.earliest()]) == Checkpoint.earliest()
    with pytest.raises(InvalidConfigurationError):
        Checkpoint.merge([Checkpoint.earliest(), Checkpoint.latest()])
    with pytest.raises(InvalidConfigurationError):
        Checkpoint.merge([])


def test_a_checkpoint_prints_its_segments() -> None:
    assert str(Checkpoint({3: MessageId(3, 5, 7)})) == "Checkpoint(3/5:7)"
    assert str(Checkpoint.latest()) == "Checkpoint(latest)"
