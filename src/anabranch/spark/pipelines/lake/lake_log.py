"""A lake on a file system: its log, the staging of new files, and their move to their final paths.

A commit has three steps: Spark writes files into a staging directory; a record in the log makes them part of
the lake; then they are moved to their final paths, and removed files are deleted. A run that finds a record
without the third step completes it first. A run that died before the second step leaves a staging directory
without a record, which a later run deletes.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from anabranch.errors import ConflictError
from anabranch.spark.decide.pipelines.lake import (
    Lake,
    LakeCommit,
    LakeFile,
    Ranges,
    decode_commit,
    decode_lake,
    encode_commit,
    encode_lake,
)
from anabranch.spark.pipelines.failures import PipelineError
from anabranch.spark.pipelines.files import Files

LOG_DIRECTORY = "_anabranch"
"""Holds the log of a lake. Parquet readers skip directories whose names begin with an underscore."""

COMMITS = f"{LOG_DIRECTORY}/commits"
STATES = f"{LOG_DIRECTORY}/states"
STAGED = f"{LOG_DIRECTORY}/staged"
ABOUT = f"{LOG_DIRECTORY}/lake.json"
STATE_EVERY = 50
"""Commits between two records of the whole state. Readers do not need the commits before such a record."""


class StagedFiles(NamedTuple):
    """Files that Spark has written but that no commit contains yet."""

    directory: str
    files: tuple[LakeFile, ...]
    sources: tuple[str, ...]
    """The path of each file in the staging directory."""
    ranges: Ranges


NOTHING = StagedFiles("", (), (), {})


class LakeLog:
    """Writes and reads one lake. A lake has one writer at a time, and a second one fails."""

    def __init__(self, spark: Any, root: str, files: Files | None = None) -> None:
        self.spark = spark
        self.files = Files(spark, root) if files is None else files
        self.lake = Lake()
        self.reload()

    def about(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the description of the lake; the first caller stores the given one."""
        if not self.files.exists(ABOUT):
            self.files.create_json(ABOUT, given)
        found: dict[str, Any] = self.files.read_json(ABOUT)
        return found

    def reload(self) -> None:
        self.lake = load_lake(self.files.names, self.files.read_json)

    def recover(self) -> None:
        """Complete the last commit, and delete staging directories that no later commit can refer to."""
        self.reload()
        if self.lake.commits:
            number = self.lake.commits[-1].number
            self._settle(decode_commit(self.files.read_json(_record(number))))
        for name in self.files.names(STAGED):
            if int(name.partition("-")[0]) < self.lake.next_number:
                self.files.delete(f"{STAGED}/{name}")

    def stage(self, frame: Any, columns: Sequence[str]) -> StagedFiles:
        """Write a DataFrame with `segment` and `position` into a new staging directory."""
        number = self.lake.next_number
        directory = f"{STAGED}/{number:08d}-{uuid.uuid4().hex}"
        # If a setting of the session kept files small, they would be joined again and again.
        writer = frame.write.option("compression", "zstd").option("maxRecordsPerFile", 0)
        writer.partitionBy(*columns).parquet(self.files.url(directory))
        written = sorted(self.files.files_below(directory))
        if not written:
            self.files.delete(directory)
            return NOTHING
        rows, ranges = self._measure(directory)
        places: Counter[str] = Counter()
        files = []
        for one in written:
            partition = one.path.rpartition("/")[0]
            path = f"{partition}/c{number:08d}-{places[partition]}.parquet"
            places[partition] += 1
            files.append(LakeFile(path, rows[one.path], one.size_bytes, number, number))
        return StagedFiles(directory, tuple(files), tuple(one.path for one in written), ranges)

    def _measure(self, directory: str) -> tuple[dict[str, int], dict[int, tuple[int, int]]]:
        """Return the rows of each staged file, and the first and last positions of each segment."""
        from pyspark.sql import functions as sql

        frame = self.spark.read.parquet(self.files.url(directory))
        grouped = frame.groupBy(sql.col("_metadata.file_path").alias("file"), "segment").agg(
            sql.count("*").alias("rows"), sql.min("position").alias("lo"), sql.max("position").alias("hi")
        )
        rows: Counter[str] = Counter()
        spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row in grouped.collect():
            rows[str(row.file).rpartition(f"{directory}/")[2]] += row.rows
            spans[row.segment].append((row.lo, row.hi + 1))
        ranges = {id_: (min(lo for lo, _ in all_), max(hi for _, hi in all_)) for id_, all_ in spans.items()}
        return dict(rows), ranges

    def commit(self, commit: LakeCommit, staged: StagedFiles) -> None:
        """Make a commit part of the lake; raises PipelineError if another run has already made it."""
        commit = replace(commit, added=staged.files, staged=staged.directory, sources=staged.sources)
        lake = self.lake.apply(commit)
        try:
            self.files.create_json(_record(commit.number), encode_commit(commit))
        except ConflictError:
            raise PipelineError(
                f"another run made commit {commit.number} of {self.files.root} in the meantime; "
                "run one pipeline at a time on a lake"
            ) from None
        self.lake = lake
        self._settle(commit)
        if commit.number % STATE_EVERY == STATE_EVERY - 1:
            self.files.create_json(f"{STATES}/{commit.number:08d}.json", encode_lake(lake))

    def _settle(self, commit: LakeCommit) -> None:
        """Move the added files to their final paths and delete the removed ones; safe to repeat."""
        if commit.staged and self.files.exists(commit.staged):
            for source, one in zip(commit.sources, commit.added, strict=True):
                if self.files.exists(f"{commit.staged}/{source}"):
                    self.files.move(f"{commit.staged}/{source}", one.path)
        for path in commit.removed:
            self.files.delete(path)
        if commit.staged:
            self.files.delete(commit.staged)

    def urls(self, files: Sequence[LakeFile]) -> list[str]:
        return [self.files.url(one.path) for one in files]


def load_lake(names: Callable[[str], Sequence[str]], read_json: Callable[[str], Any]) -> Lake:
    """Return the state of a lake, from the newest record of a whole state and the commits after it.

    `names` returns the sorted names in a directory, and `read_json` reads a file.
    """
    states = [name for name in names(STATES) if _is_record(name)]
    lake = decode_lake(read_json(f"{STATES}/{states[-1]}")) if states else Lake()
    for name in names(COMMITS):
        if _is_record(name) and int(name.removesuffix(".json")) >= lake.next_number:
            lake = lake.apply(decode_commit(read_json(f"{COMMITS}/{name}")))
    return lake


def _is_record(name: str) -> bool:
    # Unfinished files and checksums of Hadoop's local file system begin with a dot.
    return name.endswith(".json") and not name.startswith(".")


def _record(number: int) -> str:
    return f"{COMMITS}/{number:08d}.json"
