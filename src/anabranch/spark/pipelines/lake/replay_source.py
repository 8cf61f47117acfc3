"""The format `anabranch_replay`: a stream of an archive, and then of the topic itself.

Its offset is the number of the last commit that was read, and after the last commit a cut of the topic: that
of the commit, where the topic continues. Tasks and the planner read the archive through Arrow, because they
have no access to Spark's own readers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from anabranch.spark.decide.pipelines.lake import Lake, LakeFile, Ranges
from anabranch.spark.decide.source.offsets import Start, encode
from anabranch.spark.pipelines.lake.lake_log import ABOUT, load_lake
from anabranch.spark.source.data_source import AnabranchSource
from anabranch.spark.source.query import PARTITIONS_MAX
from anabranch.spark.source.stream_reader import StreamReader

NAME = "anabranch_replay"
ARCHIVE = "archive"
"""The option with the URL of the archive, and the field of an offset that holds the number of a commit."""

ALONE = "archiveonly"
"""The option that leaves out the topic and reads only the archive."""

ROWS_PER_BATCH = 10_000


class ReplaySource(AnabranchSource):
    """`.format("anabranch_replay")` for `readStream`: takes the options of the source, and `archive`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): text for name, text in options.items()}
        self.archive = given.pop(ARCHIVE)
        self.alone = given.pop(ALONE, "false") == "true"
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamReader(self, schema: Any) -> ReplayReader:  # noqa: N802
        return ReplayReader(self.archive, super().streamReader(schema), alone=self.alone)


class ArchivePart(NamedTuple):
    """Files with the rows of some keys, and the positions that are wanted from them."""

    files: tuple[LakeFile, ...]
    ranges: Ranges


class ArchivePartition(InputPartition):  # type: ignore[misc]
    """The parts of the archive that one task reads, one after the other."""

    def __init__(self, topic: str, parts: Sequence[ArchivePart]) -> None:
        self.topic = topic
        self.parts = parts


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans and reads micro-batches of the archive, then those of the topic."""

    def __init__(self, archive: str, live: StreamReader, *, alone: bool) -> None:
        self.archive = ArrowFiles(archive)
        self.live = live
        self.alone = alone
        self._fixed: Lake | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"v": 1, ARCHIVE: -1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self.live.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the archive and then the topic, so that the archive's cut is not beyond the fixed ends."""
        self._fixed = self.archive.lake()
        if not self.alone:
            self.live.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if ARCHIVE not in start:
            return self.live.latestOffset(start, limit)
        lake, done = self._fixed or self.archive.lake(), start[ARCHIVE]
        if done + 1 < lake.next_number:
            rows_max = None if isinstance(limit, ReadAllAvailable) else self.live.source.options.max_rows
            return {"v": 1, ARCHIVE: _last_commit(lake, done, rows_max)}
        # The switch to the topic reads nothing, so that Spark's offset log has the cut before the first
        # message of the topic is read.
        if self.alone:
            return start
        return dict(lake.cut) if lake.cut is not None else encode(Start("earliest"))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self.alone else self.live.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if ARCHIVE not in start:
            return self.live.partitions(start, end)
        if ARCHIVE not in end:
            return []
        options = self.live.source.options
        parts = _parts_by_bucket(self.archive.lake(), start[ARCHIVE], end[ARCHIVE])
        tasks = min(len(parts), options.max_partitions or PARTITIONS_MAX)
        return [ArchivePartition(options.topics[0], parts[at::tasks]) for at in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, ArchivePartition):
            yield from self.live.read(partition)
            return
        for part in partition.parts:
            yield from self.archive.rows(part, partition.topic, self.live.source.schema)

    def commit(self, end: dict[str, Any]) -> None:
        if ARCHIVE not in end:
            self.live.commit(end)

    def stop(self) -> None:
        self.live.stop()

    def __getstate__(self) -> dict[str, Any]:
        # Tasks receive a pickled copy and never plan.
        return {**self.__dict__, "_fixed": None}


def _last_commit(lake: Lake, done: int, rows_max: int | None) -> int:
    """Return the last commit of the next micro-batch: at least one with rows, then more within the limit."""
    rows = 0
    last = done
    for commit in lake.commits[done + 1 :]:
        if rows_max is not None and rows and rows + commit.rows > rows_max:
            break
        rows += commit.rows
        last = commit.number
    return last


def _parts_by_bucket(lake: Lake, after: int, last: int) -> list[ArchivePart]:
    """Return the files of each bucket, so that one task reads all rows of a key."""
    ranges = lake.ranges_between(after, last)
    files: dict[int, list[LakeFile]] = defaultdict(list)
    for one in lake.files_between(after, last):
        files[one.bucket].append(one)
    return [ArchivePart(tuple(files[bucket]), ranges) for bucket in sorted(files)] if ranges else []


class ArrowFiles:
    """Reads an archive through Arrow's file systems. It is pickled into tasks."""

    def __init__(self, url: str) -> None:
        self._url = url

    def lake(self) -> Lake:
        """Return the present state of the archive."""
        return load_lake(self._names, self._json)

    def rows(self, part: ArchivePart, topic: str, schema: Any) -> Iterator[Any]:
        """Yield the wanted rows of some files by segment and position, as Arrow batches."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
        from pyspark.sql.pandas.types import to_arrow_schema

        system, root = self._place()
        wanted = to_arrow_schema(schema, timezone="UTC")
        columns = [name for name in wanted.names if name != "topic"]
        needed = list(dict.fromkeys([*columns, "segment", "position"]))
        tables = []
        for one in part.files:
            file = pq.ParquetFile(system.open_input_file(f"{root}/{one.path}"))
            # A joined file has rows of many micro-batches, each of which opens it again.
            groups = [at for at in range(file.num_row_groups) if _may_hold(file, at, part.ranges)]
            table = file.read_row_groups(groups, columns=needed)
            tables.append(table.filter(_inside(table, part.ranges)))
        merged = pa.concat_tables(tables).sort_by([("segment", "ascending"), ("position", "ascending")])
        if "topic" in wanted.names:
            merged = merged.append_column("topic", pa.repeat(pa.scalar(topic), merged.num_rows))
        for batch in merged.select(wanted.names).to_batches(ROWS_PER_BATCH):
            arrays = [pc.cast(batch.column(name), wanted.field(name).type) for name in wanted.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    def _place(self) -> tuple[Any, str]:
        from pyarrow import fs

        scheme, colon, rest = self._url.partition(":")
        if not colon:
            scheme, rest = "file", self._url
        if scheme == "file":
            # Hadoop writes file:/path, and does not encode spaces and other characters.
            return fs.LocalFileSystem(), f"/{rest.strip('/')}"
        # Hadoop calls its S3 connector s3a.
        system, path = fs.FileSystem.from_uri(f"{scheme.replace('s3a', 's3')}:{rest}")
        return system, str(path).rstrip("/")

    def _names(self, directory: str) -> list[str]:
        from pyarrow import fs

        system, root = self._place()
        selector = fs.FileSelector(f"{root}/{directory}", allow_not_found=True)
        return sorted(info.base_name for info in system.get_file_info(selector))

    def _json(self, path: str) -> Any:
        system, root = self._place()
        with system.open_input_stream(f"{root}/{path}") as stream:
            return json.loads(stream.read())

    def about(self) -> Any:
        return self._json(ABOUT)


def _may_hold(file: Any, group: int, ranges: Ranges) -> bool:
    """Whether a row group may have rows in the ranges, according to the file's statistics."""
    about = file.metadata.row_group(group)
    found = {}
    for index in range(about.num_columns):
        column = about.column(index)
        if column.path_in_schema in ("segment", "position"):
            found[column.path_in_schema] = column.statistics
    if any(one is None or not one.has_min_max for one in found.values()):
        return True
    segments, positions = found["segment"], found["position"]
    return any(
        segments.min <= id_ <= segments.max and lo <= positions.max and positions.min < hi
        for id_, (lo, hi) in ranges.items()
    )


def _inside(table: Any, ranges: Ranges) -> Any:
    """Return which rows lie in the ranges."""
    import numpy as np
    import pyarrow as pa

    segments, positions = table["segment"].to_numpy(), table["position"].to_numpy()
    inside = np.zeros(len(segments), dtype=bool)
    for id_, (lo, hi) in ranges.items():
        inside |= (segments == id_) & (positions >= lo) & (positions < hi)
    return pa.array(inside)
