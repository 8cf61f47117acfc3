"""Sends the rows of files to a topic, each exactly once, and the rows of a key in order.

The rows are first written into the state directory as sorted Parquet files. Then each of these files is one
step: it is sent as one batch of the exactly-once sink, and a record says that it is done. A repeated step has
the same number and the same rows, so the sink recognises it. Files of the source that appear later are sent
by a later run, in steps after all earlier ones. The state directory also has the name of the sink: a load
that lost its state is a new load, and sends all rows again.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from anabranch.errors import MessageTooBigError
from anabranch.spark.decide.pipelines.progress import PipelineProgress
from anabranch.spark.decide.sink.records import numbered_batch
from anabranch.spark.pipelines.failures import PipelineError, reason_of, spark_failures
from anabranch.spark.pipelines.files import Files
from anabranch.spark.pipelines.loading.messages import LoadOptions, extremes, messages, refuse_unsendable
from anabranch.spark.pipelines.loading.source_files import NewRows
from anabranch.spark.pipelines.loading.sources import LoadSource, open_source
from anabranch.spark.pipelines.progress import Show, patiently, showing
from anabranch.spark.pipelines.sessions import make_known
from anabranch.spark.pipelines.state_directories import claim_state, other_brokers, sink_state
from anabranch.spark.pipelines.stored_topics import check_sink
from anabranch.spark.pipelines.topic_places import (
    FORMAT,
    ONCE,
    WRITING,
    TopicPlace,
    as_topic_place,
    check_target,
    default_state,
)

JOB = "job.json"
"""The file of the state directory that stores the name of the load."""

TOO_LARGE = (MessageTooBigError.__name__, "cannot be delivered", "maxMessageSize=")
"""Texts by which to recognise rows that the client, the broker or the topic refused as too large."""


class LoadSummary(NamedTuple):
    """The result of a run."""

    rows: int
    """Rows that this run sent."""
    seconds: float
    files: int
    """New files of the source."""


class LoadStep(NamedTuple):
    """A file whose rows are sent as one batch of the sink."""

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

    A file that changed after it was read also raises it, as does a row that cannot be parsed.

    Example:
        loaded = pipelines.TopicPlace("loaded", "pulsar://127.0.0.1:6650")
        options = pipelines.LoadOptions(key="customer", state="/data/state/loaded")
        done = pipelines.load(spark, "/lake/events.csv", loaded, options)
        print(done.rows, done.files)
    """
    given, place = options or LoadOptions(), as_topic_place(topic)
    check_target(place, (*WRITING, *ONCE), "load")
    loaded = open_source(spark, source, given.format, given.read_options)
    began = time.monotonic()
    make_known(spark)
    state = given.state or default_state("load", source, place.url, place.short_name)
    files = Files(spark, state)
    claim_state(files, {"pipeline": "load", "to": place.short_name})
    job = _Load(spark, files, loaded, place, given, f"load-{_job_of(files)}")
    with spark_failures(), showing(show, f"load into {place.short_name}") as display:
        job.check_brokers()
        # First complete an interrupted run with the rows that it read, because the source may have changed.
        rows = job.send_waiting(0, display, began)
        display(PipelineProgress(rows, time.monotonic() - began, step="putting the rows in order"))
        new = job.plan()
        rows = job.send_waiting(rows, display, began)
        job.clean()
    return LoadSummary(rows, time.monotonic() - began, new)


def _job_of(files: Files) -> str:
    """Return the random name of a load, which its first run chose.

    Steps are numbered from 0, so a load with a new state must not find the batches of another load.
    """
    if not files.exists(JOB):
        files.create_json(JOB, {"v": 1, "job": uuid.uuid4().hex[:16]})
    return str(files.read_json(JOB)["job"])


@dataclass
class _Load:
    """One load with its state directory: plans, sorted files, and records of finished steps."""

    spark: Any
    files: Files
    source: LoadSource
    place: TopicPlace
    given: LoadOptions
    sink: str

    def check_brokers(self) -> None:
        """Refuse brokers that do not know the last finished step."""
        done = [step.number for step in self.steps() if self.is_done(step)]
        if done and not sink_state(self.place, {"sinkId": self.sink}).has(numbered_batch(done[-1])):
            raise other_brokers(self.files, self.place)

    def plan(self) -> int:
        """Store a plan for rows that no plan contains yet; return the number of files with such rows."""
        known: dict[str, list[int]] = {}
        for name in self._plans():
            known |= self.files.read_json(f"plans/{name}")["files"]
        new = self.source.new_rows(known)
        if new is None:
            return 0
        bytes_max = check_sink(self.place, self.sink)
        number = len(self._plans())
        steps = self._put_in_order(number, new, bytes_max)
        self.files.create_json(f"plans/{number:08d}.json", {"v": 1, "files": new.read, "steps": steps})
        return new.files

    def _plans(self) -> list[str]:
        return [name for name in self.files.names("plans") if not name.startswith(".")]

    def steps(self) -> Iterator[LoadStep]:
        for name in self._plans():
            for step in self.files.read_json(f"plans/{name}")["steps"]:
                yield LoadStep(*step)

    def _put_in_order(self, plan: int, new: NewRows, bytes_max: int) -> list[LoadStep]:
        """Write the messages of new rows in order; return the steps that send them.

        Raises PipelineError for a row that cannot be sent. Once it were planned, the sink would refuse it in
        every run, because a run first sends what is planned.
        """
        from pyspark.sql import functions as sql

        directory = f"ordered/{plan:08d}"
        self.files.delete(directory)
        rows = messages(new, self.given)
        writer = rows.write.option("maxRecordsPerFile", self.given.rows_per_commit)
        writer.parquet(self.files.url(directory))
        written = [one.path for one in self.files.files_below(directory)]
        if not written:
            return []
        frame = self.spark.read.parquet(self.files.url(directory))
        found = (
            frame.groupBy(sql.col("_metadata.file_name").alias("file"))
            .agg(sql.count("*").alias("rows"), *extremes(self.given))
            .collect()
        )
        refuse_unsendable(found, new, self.given, bytes_max)
        rows_of = {row.file: row.rows for row in found}
        first = sum(1 for _ in self.steps())
        ordered = sorted((name for name in written if rows_of.get(name)), key=_file_order)
        return [LoadStep(first + at, f"{directory}/{name}", rows_of[name]) for at, name in enumerate(ordered)]

    def send_waiting(self, sent: int, show: Show, began: float) -> int:
        """Send all unfinished steps; return the rows that this run has sent, including `sent`."""
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
        """Send the rows of one step, those of a key by one task, and record that the step is done."""
        from pyspark.sql import functions as sql

        rows = self.spark.read.parquet(self.files.url(step.file))
        columns = rows.columns
        ordered = (
            rows.withColumn("_row", sql.col("_metadata.row_index"))
            .repartition("key")
            .sortWithinPartitions("_row")
            .select(*columns)
        )
        writer = ordered.write.format(FORMAT).options(
            **self.place.to_write(delivery="exactly-once", sinkId=self.sink, batchId=step.number)
        )
        with _advice():
            writer.mode("append").save()
        self.files.create_json(f"done/{step.number:08d}.json", {"rows": step.rows})

    def clean(self) -> None:
        """Delete the sorted files once all steps are done."""
        self.files.delete("ordered")


@contextmanager
def _advice() -> Iterator[None]:
    """Add advice to a refusal of large rows. A limit may have been lowered since the rows were planned."""
    try:
        yield
    except Exception as error:
        if not any(sign in str(error) for sign in TOO_LARGE):
            raise
        raise PipelineError(
            f"{reason_of(error)}. The load has stored these rows in its state, so changing the source does "
            "not change them: raise the limit and run the load again, or load with another --state "
            "directory, which sends all rows again"
        ) from error


def _file_order(name: str) -> tuple[int, int]:
    """Return the number of the task, and of the file among its files, from the name that Spark chose."""
    match = re.match(r"part-(\d+)-.*?-?c(\d+)\.", name)
    assert match is not None, f"Spark wrote a file with an unexpected name: {name}"
    return int(match[1]), int(match[2])
