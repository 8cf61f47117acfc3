"""An exactly-once write as Spark sees it: tasks stage rows, the driver pins and publishes them.

Spark may run a task several times and report only one of the attempts, and it may repeat a whole micro-batch
after a crash. So each attempt stages its rows under a unique name, and only the attempts that Spark reports
are pinned. This module knows the names of batches and the messages from tasks to the driver; the logs are
behind the port `Sink`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.sink.attempts import QueryBatch, attempt_name, batch_run_of, has_other_write
from anabranch.spark.decide.sink.logs import job_sink
from anabranch.spark.decide.sink.records import BatchName, Pin, numbered_batch
from anabranch.spark.options.queries import SinkOptions
from anabranch.spark.topics import OutgoingRows, Service, StagedRows


@dataclass
class StagedTask(WriterCommitMessage):  # type: ignore[misc]
    """The rows that one task attempt staged, or none if its batch was already pinned."""

    namespace: str
    sink_id: str
    batch: BatchName
    staged: StagedRows | None


def batch_of_task(options: SinkOptions, write_id: str) -> tuple[str, BatchName]:
    """Return the sink and the batch for which this task writes.

    Spark passes the query and the batch of a stream to its tasks, even inside `foreachBatch`. A function
    there may write several times, so the number of the batch is used only for a sink with a name.
    """
    context = TaskContext.get()
    query = batch = None
    if context is not None:
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
    if options.transaction is not None:
        name = BatchName(f"txn:{options.transaction}", 0)
    elif options.batch is not None:
        name = numbered_batch(options.batch)
    elif query is not None and batch is not None and (options.streaming or options.sink_id):
        name = BatchName(query, int(batch))
    else:
        name = BatchName(f"run:{write_id}", 0)
    return options.sink_id or (query if options.streaming else None) or job_sink(write_id), name


def _batch_run() -> QueryBatch | None:
    context = TaskContext.get()
    if context is None:
        return None
    return batch_run_of(
        context.getLocalProperty("spark.jobGroup.id"), context.getLocalProperty("streaming.sql.batchId")
    )


def stage_rows(
    service: Service, options: SinkOptions, write_id: str, rows: Iterator[tuple[str, OutgoingRows]]
) -> StagedTask:
    """Stage all rows and wait until they are stored, unless their batch is already committed.

    Raises InvalidConfigurationError if an earlier write of the same `foreachBatch` call committed it.
    """
    sink_id, batch = batch_of_task(options, write_id)
    sink = service.sink(options.sink_namespace, sink_id)
    state, batch_run = sink.state(), _batch_run()
    if state.has(batch):
        # A write that failed before all its rows were published may be repeated in the same call.
        if state.is_published(batch) and has_other_write(state.attempts.get(batch, ()), batch_run, write_id):
            raise InvalidConfigurationError(
                f"another write of this micro-batch already used sinkId {sink_id}, so these rows would be "
                "taken for a repetition; give each write in foreachBatch its own sinkId"
            )
        # Spark allows a task to return without reading its rows.
        return StagedTask(options.sink_namespace, sink_id, batch, None)
    attempt = attempt_name(batch_run, write_id, uuid4().hex)
    stager = sink.stager(attempt, options.flush_bytes, options.compression)
    try:
        for topic, part in rows:
            stager.write(topic, part)
        staged = stager.finish()
    finally:
        stager.close()
    return StagedTask(options.sink_namespace, sink_id, batch, staged)


def commit_staged(service: Service, messages: list[Any]) -> None:
    """Pin the attempts of a batch unless it is already pinned, and publish it. Repeating this is safe."""
    found = [message for message in messages if isinstance(message, StagedTask)]
    if not found:
        return
    first, rows = found[0], [message.staged for message in found if message.staged is not None]
    pin = None
    if rows:
        pin = Pin(
            batch=first.batch,
            attempts={staged.attempt: staged.rows for staged in rows},
            start=min(staged.start for staged in rows),
            stop=max(staged.stop for staged in rows),
            sink=uuid4().hex,
        )
    topics = {topic for staged in rows for topic in staged.topics}
    service.sink(first.namespace, first.sink_id).settle(pin, topics)
