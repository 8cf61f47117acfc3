"""The log of a lake: commits follow each other, files are joined, and JSON keeps everything."""

from __future__ import annotations

import json

import pytest

from anabranch.errors import CorruptDataError, UnsupportedFormatError
from anabranch.spark.decide.pipelines.lake import (
    Lake,
    LakeCommit,
    LakeFile,
    decode_commit,
    decode_lake,
    encode_commit,
    encode_lake,
    plan_joins,
)

CUT = {"v": 1, "topics": {"orders": {"segs": {"0": 10}}}}


def file(commit: int, bucket: int = 0, size: int = 10) -> LakeFile:
    return LakeFile(f"date=2026-01-31/bucket={bucket}/c{commit:08d}-0.parquet", 5, size, commit, commit)


def appended(lake: Lake, *files: LakeFile, lo: int = 0, hi: int = 10) -> Lake:
    return lake.apply(LakeCommit(lake.next_number, CUT, files, ranges={0: (lo, hi)}))


def test_commits_add_and_remove_files() -> None:
    one, two, joined = file(0), file(1), file(2)._replace(first_commit=0, last_commit=1)
    lake = appended(appended(Lake(), one), two, lo=10, hi=30)
    assert (lake.cut, lake.next_number, [commit.rows for commit in lake.commits]) == (CUT, 2, [10, 20])
    lake = lake.apply(LakeCommit(2, CUT, (joined,), (one.path, two.path), kind="join"))
    assert list(lake.files.values()) == [joined]
    assert lake.commits[-1].rows == 0


def test_a_commit_that_does_not_follow_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="3 follows -1"):
        Lake().apply(LakeCommit(3, CUT))
    with pytest.raises(CorruptDataError, match="removes x"):
        Lake().apply(LakeCommit(0, CUT, removed=("x",)))


def test_files_and_positions_of_some_commits_are_found_after_a_join() -> None:
    lake = Lake()
    for at in range(4):
        lake = appended(lake, file(at), lo=10 * at, hi=10 * at + 10)
    joined = file(4)._replace(first_commit=0, last_commit=2)
    lake = lake.apply(LakeCommit(4, CUT, (joined,), tuple(file(at).path for at in range(3)), kind="join"))
    assert lake.files_between(-1, 0) == [joined]
    assert lake.files_between(1, 3) == [joined, file(3)]
    assert lake.files_between(2, 3) == [file(3)]
    assert lake.ranges_between(0, 2) == {0: (10, 30)}
    assert lake.ranges_between(3, 4) == {}


def test_json_keeps_commits_and_states() -> None:
    commit = LakeCommit(0, CUT, (file(0),), (), {7: (3, 8)}, "_anabranch/staged/x", ("a.parquet",))
    assert decode_commit(json.loads(json.dumps(encode_commit(commit)))) == commit
    lake = Lake().apply(commit)
    assert decode_lake(json.loads(json.dumps(encode_lake(lake)))) == lake


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 9"):
        decode_commit({"v": 9})
    with pytest.raises(UnsupportedFormatError, match="version None"):
        decode_lake({})


def test_small_files_of_a_partition_are_joined_when_there_are_enough() -> None:
    few = [file(at, bucket=1) for at in range(3)]
    many = [file(at, bucket=2) for at in range(4)]
    large = [file(at, bucket=3, size=60) for at in range(9)]
    assert plan_joins([*few, *many, *large], 100, few=4) == [tuple(many)]


def test_joined_files_stay_below_the_size() -> None:
    groups = plan_joins([file(at, size=30) for at in range(7)], 100, few=4)
    assert [len(group) for group in groups] == [3, 3]


def test_a_commit_may_have_fewer_rows_than_positions() -> None:
    commit = LakeCommit(0, CUT, ranges={0: (0, 2**40)}, counted=5)
    assert decode_commit(json.loads(json.dumps(encode_commit(commit)))) == commit
    assert Lake().apply(commit).commits[0].rows == 5
