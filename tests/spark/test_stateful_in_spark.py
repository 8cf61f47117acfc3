"""Stateful queries in real Spark: a topic that splits and merges gives the results of a quiet one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as sql

from tests.spark.files import FilesSource, FileTopic

# A machine that is busy takes long to start Spark, and a query that is interrupted spoils all that follow.
pytestmark = pytest.mark.timeout(600)

STEP_MS = 5 * 60_000
DELAY_MS = 12 * 60_000
WINDOW_MS = 30 * 60_000
BEGIN_MS = 1_700_000_000_000 // WINDOW_MS * WINDOW_MS
STEPS = 48


@pytest.fixture
def topics(spark: Any, tmp_path: Path) -> tuple[FileTopic, FileTopic]:
    """A topic that stays as it is, and one for changes."""
    spark.dataSource.register(FilesSource)
    root = tmp_path / "topics"
    return FileTopic(root, "quiet").create(), FileTopic(root, "busy").create(2)


def events_of(step: int) -> list[tuple[str, int]]:
    """Keys and event times of one step: out of order, and up to the delay of the watermark late."""
    stored_ms = BEGIN_MS + step * STEP_MS
    count = 60 if step % 6 == 5 else 9
    # Few keys are hot, so that segments have very different backlogs.
    keys = [f"key-{(n * n + step) % (3 if n % 3 else 23)}" for n in range(count)]
    return [(key, stored_ms - (n * 7919 + step * 104_729) % DELAY_MS) for n, key in enumerate(keys)]


def send(topic: FileTopic, step: int) -> None:
    rows: list[tuple[str | bytes | None, bytes | None]] = [
        (key, str(event_ms).encode()) for key, event_ms in events_of(step)
    ]
    topic.send(rows, batch=4, at_ms=BEGIN_MS + step * STEP_MS)


def reshard(topic: FileTopic, step: int) -> None:
    active = topic.layout.active
    if step % 7 == 3:
        topic.split(active[step % len(active)].id)
    elif step % 7 == 6 and len(active) > 2:
        topic.merge(active[1].id, active[2].id)


def stream_of(spark: Any, topic: FileTopic, **options: str) -> Any:
    stream = spark.readStream.format(FilesSource.name()).option("service.url", str(topic.root))
    settings = {"subscribe": topic.name, "startingOffsets": "earliest", **options}
    rows = stream.options(**settings).load()
    event = sql.timestamp_millis(sql.col("value").cast("string").cast("bigint"))
    return rows.withColumn("event", event).withColumn("name", sql.col("key").cast("string"))


def run(query: Any, table: str, mode: str, checkpoint: Path) -> tuple[Any, int]:
    """Run until everything is read; returns the rows of the sink and the number of micro-batches."""
    written = query.writeStream.format("memory").queryName(table).outputMode(mode)
    running = written.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert running.awaitTermination(300)
    batches = [progress for progress in running.recentProgress if progress.numInputRows]
    return query.sparkSession.table(table).collect(), len(batches)


def test_a_watermark_drops_no_message_of_a_resharding_topic(
    spark: Any, topics: tuple[FileTopic, FileTopic], tmp_path: Path
) -> None:
    _, busy = topics
    expected: Counter[int] = Counter()
    for step in range(STEPS):
        send(busy, step)
        reshard(busy, step)
        expected.update((event_ms - BEGIN_MS) // WINDOW_MS for _, event_ms in events_of(step))
    windows = (
        stream_of(spark, busy, maxOffsetsPerTrigger="130")
        .withWatermark("event", f"{DELAY_MS + STEP_MS} milliseconds")
        .groupBy(sql.window("event", f"{WINDOW_MS} milliseconds"))
        .count()
    )
    rows, batches = run(windows, "windows", "append", tmp_path / "checkpoint")
    found = {(int(row.window.start.timestamp() * 1000) - BEGIN_MS) // WINDOW_MS: row["count"] for row in rows}
    assert batches >= 5, "the limit must cut the backlog"
    # The last windows stay open until the watermark has passed them.
    assert len(found) >= len(expected) - 3
    assert found == {window: expected[window] for window in found}


def test_state_of_a_resharding_topic_equals_that_of_a_quiet_one(
    spark: Any, topics: tuple[FileTopic, FileTopic], tmp_path: Path
) -> None:
    results = []
    for topic in topics:
        for part in range(3):
            for step in range(part * 8, part * 8 + 8):
                send(topic, step)
                if topic.name == "busy":
                    reshard(topic, step)
            # The limit changes at each restart; the state goes on.
            limit = {"maxOffsetsPerTrigger": str(60 + 40 * part)} if part else {}
            latest = (
                stream_of(spark, topic, **limit)
                .groupBy("name")
                .agg(
                    sql.count("*").alias("count"),
                    sql.max_by("event", sql.struct("segment", "position")).alias("latest"),
                )
            )
            table = f"state_{topic.name}_{part}"
            rows, _ = run(latest, table, "complete", tmp_path / topic.name)
        results.append({row.name: (row["count"], row.latest) for row in rows})
    quiet, busy = results
    assert len(topics[1].layout.segments) > 4
    assert quiet == busy
    assert sum(count for count, _ in busy.values()) == sum(len(events_of(step)) for step in range(24))
