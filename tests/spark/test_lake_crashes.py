"""A writer of a lake dies at each of its operations on files; the next run leaves each row once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.errors import ConflictError
from anabranch.spark.decide.pipelines.lake import LakeCommit, LakeFile
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.lake.lake_log import LakeLog, StagedFiles
from anabranch.spark.pipelines.lake.replay_source import ArrowFiles

pytestmark = pytest.mark.timeout(600)

BUCKETS = 2
COMMITS = 3
ROWS = 4


class WriterDiedError(Exception):
    """The process that writes a lake ended."""


class DyingFiles(Files):
    """Files of a process that dies in front of its n-th change."""

    def __init__(self, spark: Any, root: Path, left: int) -> None:
        super().__init__(spark, str(root))
        self.left = left

    def create_json(self, path: str, value: object) -> None:
        self._change()
        super().create_json(path, value)

    def move(self, source: str, target: str) -> None:
        self._change()
        super().move(source, target)

    def delete(self, path: str) -> None:
        self._change()
        super().delete(path)

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise WriterDiedError


def staged(log: LakeLog, root: Path, attempt: int, rows: range) -> StagedFiles:
    """Write rows as Spark would: a file for each bucket, in a new staging directory."""
    number = log.lake.next_number
    directory = f"_anabranch/staged/{number:08d}-{attempt}"
    files, sources = [], []
    for bucket in range(BUCKETS):
        source = f"bucket={bucket}/part-{attempt}.parquet"
        path = root / directory / source
        path.parent.mkdir(parents=True)
        positions = rows[bucket::BUCKETS]
        pq.write_table(pa.table({"position": list(positions)}), path)
        place = f"bucket={bucket}/c{number:08d}-0.parquet"
        files.append(LakeFile(place, len(positions), path.stat().st_size, number, number))
        sources.append(source)
    return StagedFiles(directory, tuple(files), tuple(sources), {0: (rows.start, rows.stop)})


def cut(rows: int) -> dict[str, Any]:
    return {"v": 1, "topics": {"orders": {"segs": {"0": rows}}}}


def write_all(spark: Any, root: Path, attempt: int, left: int) -> int:
    """Append three commits, then replace all files by one per bucket; return the changes that are left."""
    files = DyingFiles(spark, root, left)
    log = LakeLog(spark, str(root), files)
    log.recover()
    for number in range(log.lake.next_number, COMMITS):
        part = staged(log, root, attempt, range(number * ROWS, (number + 1) * ROWS))
        log.commit(LakeCommit(number, cut((number + 1) * ROWS), ranges=part.ranges), part)
    if log.lake.next_number == COMMITS:
        part = staged(log, root, attempt, range(COMMITS * ROWS))
        old = tuple(log.lake.files)
        log.commit(LakeCommit(COMMITS, log.lake.cut, removed=old, kind="join"), part)
    return files.left


def rows_of(paths: list[Path]) -> list[int]:
    return sorted(row for path in paths for row in pq.read_table(path)["position"].to_pylist())


def plain_files(root: Path) -> list[Path]:
    """The files that a reader without knowledge of the log finds."""
    return [path for path in root.rglob("*.parquet") if "_anabranch" not in path.parts]


def test_a_lake_is_complete_after_a_death_at_any_change(spark: Any, tmp_path: Path) -> None:
    plenty = 1000
    changes = plenty - write_all(spark, tmp_path / "whole", 0, plenty)
    assert changes > 20
    for deadly in range(changes):
        root = tmp_path / f"lake-{deadly}"
        with pytest.raises(WriterDiedError):
            write_all(spark, root, 0, deadly)
        # A reader of the log finds each row of each commit once, wherever the writer died.
        lake = ArrowFiles(root.as_uri()).lake()
        committed = (lake.cut or cut(0))["topics"]["orders"]["segs"]["0"]
        assert sum(one.rows for one in lake.files.values()) == committed
        write_all(spark, root, 1, plenty)
        assert rows_of(plain_files(root)) == list(range(COMMITS * ROWS)), deadly
        LakeLog(spark, str(root)).recover()
        assert not list((root / "_anabranch" / "staged").glob("*"))


def test_a_second_writer_fails_and_changes_nothing(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    one, two = LakeLog(spark, str(root)), LakeLog(spark, str(root))
    first, second = staged(one, root, 1, range(4)), staged(two, root, 2, range(4))
    one.commit(LakeCommit(0, cut(4), ranges=first.ranges), first)
    with pytest.raises(PipelineError, match="another run made commit 0"):
        two.commit(LakeCommit(0, cut(4), ranges=second.ranges), second)
    assert rows_of(plain_files(root)) == list(range(4))
    one.recover()
    assert not list((root / "_anabranch" / "staged").glob("*"))


def test_a_file_is_created_once(spark: Any, tmp_path: Path) -> None:
    files = Files(spark, str(tmp_path))
    files.create_json("a/b.json", {"x": 1})
    with pytest.raises(ConflictError):
        files.create_json("a/b.json", {"x": 2})
    assert files.read_json("a/b.json") == {"x": 1}
    assert [name for name in files.names("a") if not name.startswith(".")] == ["b.json"]
    assert files.names("missing") == []


def test_one_of_several_writers_creates_a_file(spark: Any, tmp_path: Path) -> None:
    writers = [Files(spark, str(tmp_path)) for _ in range(4)]

    def create(writer: int, number: int) -> bool:
        try:
            writers[writer].create_json(f"a/{number}.json", {"by": writer})
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(len(writers)) as pool:
        for number in range(50):
            created = list(pool.map(create, range(len(writers)), [number] * len(writers)))
            assert created.count(True) == 1, number
            assert writers[0].read_json(f"a/{number}.json") == {"by": created.index(True)}
    assert sorted(path.suffix for path in (tmp_path / "a").iterdir()) == [".json"] * 50
