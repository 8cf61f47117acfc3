"""Sends the rows of files to a topic, each exactly once, and the rows of a key in order.

The rows are first written into the state directory as Parquet files in their order. Then each of these files
is one step: it is sent as one batch of the exactly-once sink, and a record says that it is done. A repeated
step has the same number and the same rows, so the sink recognises it. Files of the source that appear later
are sent by a later run, in steps behind all earlier ones. The state directory also has the name of the sink:
a load without its state is another load, and sends all rows again.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.progress import PipelineProgress
from anabranch.spark.pipelines.failures import PipelineError, spark_failures
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.job_states import claim_state
from anabranch.spark.pipelines.load_sources import LoadSource, open_source
from anabranch.spark.pipelines.places import (
    FORMAT,
    ONCE,
    WRITING,
    TopicPlace,
    check_target,
    default_state,
    place_of,
)
from anabranch.spark.pipelines.progress import Show, patiently, showing
from anabranch.spark.pipelines.sessions import make_known
from anabranch.spark.pipelines.source_files import NewRows
from anabranch.spark.pipelines.stored_topics import check_sink

JOB = "job.json"
"""The file of the state directory with the name of the load."""


@dataclass(frozen=True)
class LoadOptions:
    """How to read the files and how to make messages of their rows.

    Example:
        pipelines.LoadOptions(key="customer", value="amount", order_by=["number:int"])
    """

    format: str | None = None
    """parquet, csv, json or iceberg; by the name of the files if None."""
    read_options: Mapping[str, str] = field(default_factory=dict)
    """Options of Spark's reader of this format, or of that of Iceberg tables."""
    key: str | None = None
    """Column of the key; None sends messages without keys."""
    value: str | None = None
    """Column of the value; None sends the whole row as JSON."""
    event_time: str | None = None
    """Column of the event time."""
    order_by: Sequence[str] = ()
    """Columns that give the order, as `name` or `name:type`; by file name and row if empty."""
    rows_per_commit: int = 1_000_000
    """Most rows of one step."""
    state: str | None = None
    """The directory of the progress; in `anabranch-state/` if None."""


class LoadSummary(NamedTuple):
    """The result of a run."""

    rows: int
    """Rows that this run sent."""
    seconds: float
    files: int
    """New files of the source."""


class LoadStep(NamedTuple):
    """Rows that are sent as one batch of the sink."""

    number: int
    file: str
    rows: int


def load(
    spark: Any,
    source: str,
    topic: TopicPlace | str,
    options: LoadOptions | None = None,
    show: Show | None = None,
) -> LoadSummary:
    """Send the rows of all files that no earlier run sent; raises PipelineError if one cannot be read.

    A file that changed after it was read is such an error, and so is a row that cannot be parsed.

    Example:
        loaded = pipelines.TopicPlace("loaded", "pulsar://127.0.0.1:6650")
        options = pipelines.LoadOptions(key="customer", state="/data/state/loaded")
        done = pipelines.load(spark, "/lake/events.csv", loaded, options)
        print(done.rows, done.files)
    """
    given, place = options or LoadOptions(), place_of(topic)
    check_target(place, (*WRITING, *ONCE), "load")
    loaded = open_source(spark, source, given.format, given.read_options)
    began = time.monotonic()
    make_known(spark)
    state = given.state or default_state("load", source, place.url, place.short_name)
    files = Files(spark, state)
    claim_state(files, {"pipeline": "load", "to": place.short_name})
    job = _Load(spark, files, loaded, place, given, f"load-{_job_of(files)}")
    with spark_failures(), showing(show, f"load into {place.short_name}") as display:
        # An interrupted run is completed first, with the rows that it read: the source may have changed.
        rows = job.send_waiting(0, display, began)
        display(PipelineProgress(rows, time.monotonic() - began, step="putting the rows in order"))
        new = job.plan()
        rows = job.send_waiting(rows, display, began)
        job.clean()
    return LoadSummary(rows, time.monotonic() - began, new)


def _job_of(files: Files) -> str:
    """Return the random name of a load, made by its first run.

    Its steps are numbered from 0, so a load with a new state must not find the batches of another one.
    """
    if not files.exists(JOB):
        files.create_json(JOB, {"v": 1, "job": uuid.uuid4().hex[:16]})
    return str(files.read_json(JOB)["job"])


@dataclass
class _Load:
    """One load with its state directory: plans, ordered files and records of steps that are done."""

    spark: Any
    files: Files
    source: LoadSource
    place: TopicPlace
    given: LoadOptions
    sink: str

    def plan(self) -> int:
        """Store a plan for rows that no plan contains; return the number of files with such rows."""
        known: dict[str, list[int]] = {}
        for name in self._plans():
            known |= self.files.read_json(f"plans/{name}")["files"]
        new = self.source.new_rows(known)
        if new is None:
            return 0
        check_sink(self.place, self.sink)
        number = len(self._plans())
        steps = self._put_in_order(number, new)
        self.files.create_json(f"plans/{number:08d}.json", {"v": 1, "files": new.read, "steps": steps})
        return new.files

    def _plans(self) -> list[str]:
        return [name for name in self.files.names("plans") if not name.startswith(".")]

    def steps(self) -> Iterator[LoadStep]:
        for name in self._plans():
            for step in self.files.read_json(f"plans/{name}")["steps"]:
                yield LoadStep(*step)

    def _put_in_order(self, plan: int, new: NewRows) -> list[LoadStep]:
        """Write the messages of new rows in their order; return the steps that send them."""
        from pyspark.sql import functions as sql

        directory = f"ordered/{plan:08d}"
        self.files.delete(directory)
        rows = _messages(new, self.given)
        writer = rows.write.option("maxRecordsPerFile", self.given.rows_per_commit)
        writer.parquet(self.files.url(directory))
        written = [one.path for one in self.files.files_below(directory)]
        if not written:
            return []
        frame = self.spark.read.parquet(self.files.url(directory))
        first_time = sql.min("eventTime") if self.given.event_time else sql.lit(None).cast("timestamp")
        found = (
            frame.groupBy(sql.col("_metadata.file_name").alias("file"))
            .agg(sql.count("*").alias("rows"), sql.unix_millis(first_time).alias("first_ms"))
            .collect()
        )
        if any(row.first_ms is not None and row.first_ms < 0 for row in found):
            # The sink would refuse these rows in every run, because a run sends first what it has planned.
            raise PipelineError(
                f"column {self.given.event_time} holds a time before 1970, which cannot be sent as event time"
            )
        rows_of = {row.file: row.rows for row in found}
        first = sum(1 for _ in self.steps())
        ordered = sorted((name for name in written if rows_of.get(name)), key=_file_order)
        return [LoadStep(first + at, f"{directory}/{name}", rows_of[name]) for at, name in enumerate(ordered)]

    def send_waiting(self, sent: int, show: Show, began: float) -> int:
        """Send all steps that are not done; return the rows that this run has sent, with `sent`."""
        waiting = [step for step in self.steps() if not self.is_done(step)]
        left = sum(step.rows for step in waiting)
        for step in waiting:
            show(PipelineProgress(sent, time.monotonic() - began, left, f"step {step.number}"))
            patiently(partial(self.send, step))
            sent, left = sent + step.rows, left - step.rows
        return sent

    def is_done(self, step: LoadStep) -> bool:
        return self.files.exists(f"done/{step.number:08d}.json")

    def send(self, step: LoadStep) -> None:
        """Send the rows of one step, all rows of a key by one task, and record that it is done."""
        from pyspark.sql import functions as sql

        rows = self.spark.read.parquet(self.files.url(step.file))
        columns = rows.columns
        ordered = (
            rows.withColumn("_row", sql.col("_metadata.row_index"))
            .repartition("key")
            .sortWithinPartitions("_row")
            .select(*columns)
        )
        ordered.write.format(FORMAT).options(
            **self.place.to_write(delivery="exactly-once", sinkId=self.sink, batchId=step.number)
        ).mode("append").save()
        self.files.create_json(f"done/{step.number:08d}.json", {"rows": step.rows})

    def clean(self) -> None:
        """Delete the ordered files when all steps are done."""
        self.files.delete("ordered")


def _messages(new: NewRows, given: LoadOptions) -> Any:
    """Return the rows as messages, in their order."""
    from pyspark.sql import functions as sql

    frame, columns = new.frame, new.frame.columns
    named = [given.key, given.value, given.event_time, *(part.partition(":")[0] for part in given.order_by)]
    for name in named:
        if name is not None and name not in columns:
            raise InvalidConfigurationError(
                f"the files have no column {name}; they have {', '.join(columns)}"
            )
    value = _bytes(frame, given.value) if given.value else sql.to_json(sql.struct(*map(_quoted, columns)))
    made = [
        (_bytes(frame, given.key) if given.key else sql.lit(None).cast("binary")).alias("key"),
        value.cast("binary").alias("value"),
    ]
    if given.event_time:
        made.append(sql.col(_quoted(given.event_time)).cast("timestamp").alias("eventTime"))
    # A task reads its parts of files one after the other, so its row numbers grow inside each part.
    row = sql.monotonically_increasing_id()
    wanted = [_order(part) for part in given.order_by]
    order = {f"_order{at}": column for at, column in enumerate([*wanted, *new.place, row])}
    arranged = frame.select(*made, *(column.alias(name) for name, column in order.items()))
    return arranged.orderBy(*order).drop(*order)


def _order(part: str) -> Any:
    from pyspark.sql import functions as sql

    name, _, kind = part.partition(":")
    column = sql.col(_quoted(name))
    return column.cast(kind) if kind else column


def _bytes(frame: Any, name: str) -> Any:
    from pyspark.sql import functions as sql

    column, kind = sql.col(_quoted(name)), dict(frame.dtypes)[name]
    if kind == "binary":
        return column
    # Spark's own text of a struct, such as {1, a}, has no names and cannot be read again.
    nested = kind.startswith(("struct<", "array<", "map<", "variant"))
    return (sql.to_json(column) if nested else column.cast("string")).cast("binary")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _file_order(name: str) -> tuple[int, int]:
    """Return the numbers of the task and of its file in the name that Spark gave a file."""
    match = re.match(r"part-(\d+)-.*?-?c(\d+)\.", name)
    assert match is not None, f"Spark wrote a file of another name: {name}"
    return int(match[1]), int(match[2])
