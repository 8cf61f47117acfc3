"""The stream of an archive and its live topic, as Spark calls it, while the archive goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.spark.decide.pipelines.lake import LakeCommit, LakeFile, encode_commit
from anabranch.spark.pipelines.lake.replay_source import ReplayReader
from tests.spark.files import FileTopic
from tests.unit.spark.readers import drain, numbers, read, stream_of


class Archive:
    """An archive of segment 0 of a topic, written without Spark: the value of a row is its position."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._commits = 0
        self._rows = 0
        (root / "_anabranch" / "commits").mkdir(parents=True)

    def add(self, hi: int, *, row_group: int | None = None) -> None:
        """Commit all rows below a position that are not in the archive."""
        positions = range(self._rows, hi)
        path = f"date=2026-01-31/bucket=0/c{self._commits:08d}-0.parquet"
        self.write(path, positions, row_group)
        file = LakeFile(path, len(positions), 1, self._commits, self._commits)
        self._commit(hi, (file,), {0: (self._rows, hi)})

    def join(self, *, row_group: int | None = None) -> None:
        """Replace all files by one."""
        old = sorted(self.root.glob("date=*/bucket=0/*.parquet"))
        path = f"date=2026-01-31/bucket=0/c{self._commits:08d}-0.parquet"
        self.write(path, range(self._rows), row_group)
        for file in old:
            file.unlink()
        removed = tuple(str(file.relative_to(self.root)) for file in old)
        joined = LakeFile(path, self._rows, 1, 0, self._commits - 1)
        self._commit(self._rows, (joined,), {}, removed)

    def write(self, path: str, positions: range, row_group: int | None) -> None:
        table = pa.table(
            {
                "key": [f"key-{n % 11}".encode() for n in positions],
                "value": [b"%d" % n for n in positions],
                "timestamp": pa.array([0] * len(positions), pa.timestamp("us", "UTC")),
                "segment": pa.array([0] * len(positions), pa.int64()),
                "position": pa.array(positions, pa.int64()),
            }
        )
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, self.root / path, row_group_size=row_group)

    def _commit(self, hi: int, added: Any, ranges: Any, removed: tuple[str, ...] = ()) -> None:
        cut = {"v": 1, "topics": {"orders": {"segs": {"0": hi}}}}
        commit = LakeCommit(self._commits, cut, added, removed, ranges)
        record = self.root / "_anabranch" / "commits" / f"{self._commits:08d}.json"
        record.write_text(json.dumps(encode_commit(commit)))
        self._commits += 1
        self._rows = hi


@pytest.fixture
def topic(tmp_path: Path) -> FileTopic:
    topic = FileTopic(tmp_path, "orders").create()
    topic.send(numbers(0, 60))
    return topic


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "lake")


def replay_of(archive: Archive, topic: FileTopic, **given: str) -> Any:
    return ReplayReader(archive.root.as_uri(), stream_of(topic, **given), alone=False)


def test_a_bounded_replay_ends_at_its_start_while_the_archive_goes_on(
    archive: Archive, topic: FileTopic
) -> None:
    archive.add(20)
    archive.add(40)
    reader = replay_of(archive, topic, maxOffsetsPerTrigger="20")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == {"v": 1, "archive": 0}
    # The archive passes the ends that the topic had when the replay began.
    topic.send(numbers(60, 90))
    archive.add(90)
    archive.join()
    rows, reached, _ = drain(reader, start)
    assert rows == list(range(60))
    # The next run begins where this one ended.
    again = replay_of(archive, topic)
    again.prepareForTriggerAvailableNow()
    assert drain(again, reached)[0] == list(range(60, 90))


def test_the_path_of_an_archive_may_have_any_letters(tmp_path: Path, topic: FileTopic) -> None:
    archive = Archive(tmp_path / "é lake 100%41")
    archive.add(20)
    # Hadoop writes the path into a URL as it is.
    reader = ReplayReader(f"file:{archive.root}", stream_of(topic), alone=True)
    assert drain(reader, reader.initialOffset())[0] == list(range(20))


def test_an_unbounded_replay_follows_the_archive(archive: Archive, topic: FileTopic) -> None:
    archive.add(20)
    reader = replay_of(archive, topic)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    archive.add(60)
    assert reader.latestOffset(first, reader.getDefaultReadLimit()) == {"v": 1, "archive": 1}
    assert drain(reader, reader.initialOffset())[0] == list(range(60))


def test_only_the_wanted_parts_of_a_joined_file_are_read(archive: Archive, topic: FileTopic) -> None:
    archive.add(20)
    archive.add(60)
    archive.join(row_group=10)
    (joined,) = archive.root.glob("date=*/bucket=0/*.parquet")
    last = pq.ParquetFile(joined).metadata.row_group(5)
    reader = replay_of(archive, topic)
    task = ReplayReader(archive.root.as_uri(), stream_of(topic), alone=True)
    first, second = reader.initialOffset(), {"v": 1, "archive": 0}
    # Reading the broken part would fail.
    damaged = bytearray(joined.read_bytes())
    at = min(last.column(index).dictionary_page_offset for index in range(2))
    damaged[at : at + 40] = bytes(40)
    joined.write_bytes(damaged)
    assert read(task, reader.partitions(first, second)) == list(range(20))
    with pytest.raises(OSError):
        read(task, reader.partitions(second, {"v": 1, "archive": 1}))
