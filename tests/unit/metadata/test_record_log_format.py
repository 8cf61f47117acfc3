"""The bytes of the record log."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from anabranch.metadata.sqlite.record_log_format import (
    COMMIT,
    FRAME_BYTES,
    HEAD_BYTES,
    LogFrame,
    LoggedChange,
    RecordState,
    base_frames,
    encode_frame,
    encode_head,
    follow,
    scan,
)
from anabranch.metadata.store import ABSENT


def file_of(frames: Iterable[LogFrame], number: int = 1) -> bytes:
    data = encode_head(number)
    for frame in frames:
        data += encode_frame(number, len(data), frame)
    return data


def commit(number: int, *changes: LoggedChange) -> LogFrame:
    return LogFrame(COMMIT, number, list(changes))


def put(path: str, number: int, value: bytes = b"1") -> LoggedChange:
    return LoggedChange(path, number, 0, value)


BASE_OF_A = [*base_frames(4, [put("/a", 4)])]


def test_a_file_is_the_state_at_its_begin_and_the_commits_since() -> None:
    removal = LoggedChange("/a", 6, ABSENT)
    number = LoggedChange("/n", 6, 9, b"", True)
    found = scan(1, file_of([*BASE_OF_A, commit(5, put("/b", 5)), commit(6, removal, number)]))
    assert (found.based, found.damage, found.state.commit) == (True, None, 6)
    assert found.state.records == {"/b": put("/b", 5)}
    assert found.state.sequences == {"/n": number}


def test_a_large_state_is_several_frames() -> None:
    changes = [put(f"/{number}", 1, bytes(FRAME_BYTES // 2)) for number in range(5)]
    frames = [*base_frames(1, changes)]
    assert len(frames) == 3
    assert list(scan(1, file_of(frames)).state.records) == [change.path for change in changes]


def test_a_file_without_its_begin_is_damaged() -> None:
    assert scan(1, encode_head(1)).damage is not None
    changes = [put(f"/{number}", 1, bytes(FRAME_BYTES)) for number in range(2)]
    assert not scan(1, file_of([*base_frames(1, changes)][:1])).based


@pytest.mark.parametrize("numbers", [(6,), (5, 7), (5, 5)])
def test_a_commit_that_is_missing_or_repeated_is_damage(numbers: tuple[int, ...]) -> None:
    frames = [*BASE_OF_A, *(commit(number, put("/b", number)) for number in numbers)]
    assert scan(1, file_of(frames)).damage is not None


def test_a_frame_of_another_file_or_place_is_no_frame() -> None:
    assert scan(2, file_of(BASE_OF_A, number=1)).damage is not None
    moved = encode_head(1) + encode_frame(1, HEAD_BYTES + 1, BASE_OF_A[0])
    assert not scan(1, moved).based


def test_frames_behind_a_damaged_one_are_still_read() -> None:
    data = bytearray(file_of([*BASE_OF_A, commit(5, put("/b", 5)), commit(6, put("/c", 6))]))
    data[len(file_of(BASE_OF_A)) + 12] ^= 1
    found = scan(1, bytes(data))
    assert found.damage is not None
    assert list(found.state.records) == ["/a", "/c"]


def test_only_the_next_commits_are_followed() -> None:
    start = len(file_of(BASE_OF_A))
    data = file_of([*BASE_OF_A, commit(5, put("/b", 5)), commit(6), commit(8)])
    followed = [(frame.commit, end) for frame, end in follow(1, data[start:], start, 4)]
    assert [number for number, _ in followed] == [5, 6]
    assert followed[-1][1] == len(data) - len(encode_frame(1, 0, commit(8)))
    assert [*follow(1, data[start:], start, 3)] == []
    assert [*follow(1, data[start:-3], start, 5)] == []


def test_the_newer_copy_of_each_record_is_kept() -> None:
    mine, theirs = RecordState(7), RecordState(9)
    for change in (put("/old", 3), put("/same", 5), put("/deleted", 4), put("/newer", 7)):
        mine.apply(change)
    for change in (put("/old", 8, b"2"), put("/same", 5), put("/newer", 6), put("/only", 2)):
        theirs.apply(change)
    theirs.apply(LoggedChange("/deleted", 9, ABSENT))
    mine.add_newer(theirs)
    assert mine.commit == 9
    assert mine.records == {
        "/old": put("/old", 8, b"2"),
        "/same": put("/same", 5),
        "/newer": put("/newer", 7),
        "/only": put("/only", 2),
    }


def test_the_changes_between_two_states_turn_one_into_the_other() -> None:
    before, after = RecordState(1), RecordState(5)
    for change in (put("/a", 1), put("/b", 1)):
        before.apply(change)
    for change in (put("/a", 1), put("/c", 5), LoggedChange("/n", 5, 2, b"", True)):
        after.apply(change)
    changes = after.changes_from(before)
    assert {change.path for change in changes} == {"/b", "/c", "/n"}
    for change in changes:
        before.apply(change)
    assert before.changes_from(after) == []
