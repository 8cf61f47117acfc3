"""The source and sink inside real Spark, over topics in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql

from anabranch.model.hashing import key_hash
from anabranch.protocol.entry.entries import decode_columns
from tests.spark.files import FilesSource, FileTopic

# A machine that is busy takes long to start Spark, and a query that is interrupted spoils all that follow.
pytestmark = pytest.mark.timeout(600)

FORMAT = FilesSource.name()
KEYS = 17


@pytest.fixture
def topic(spark: Any, tmp_path: Path) -> FileTopic:
    spark.dataSource.register(FilesSource)
    return FileTopic(tmp_path / "topics", "orders").create()


def numbers(lo: int, hi: int) -> list[tuple[str | bytes | None, bytes | None]]:
    return [(f"key-{n % KEYS}", str(n).encode()) for n in range(lo, hi)]


def read(spark: Any, topic: FileTopic, **options: str) -> Any:
    reader = spark.read.format(FORMAT).option("service.url", str(topic.root)).option("subscribe", topic.name)
    return reader.options(**options).load()


def read_stream(spark: Any, topic: FileTopic, **options: str) -> Any:
    stream = spark.readStream.format(FORMAT).option("service.url", str(topic.root))
    return stream.option("subscribe", topic.name).options(**options).load()


def values(frame: Any) -> list[int]:
    return [int(row.value) for row in frame.select(sql.col("value").cast("string")).collect()]


def copying(stream: Any, target: FileTopic, checkpoint: Path) -> Any:
    """Return a stream of keys and values to a topic, not yet started."""
    return (
        stream.select("key", "value")
        .writeStream.format(FORMAT)
        .option("service.url", str(target.root))
        .option("topic", target.name)
        .option("delivery", "at-least-once")
        .option("checkpointLocation", str(checkpoint))
    )


def run_available(stream: Any, target: FileTopic, checkpoint: Path) -> Any:
    """Copy the available keys and values, and return the progress reports."""
    query = copying(stream, target, checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return query.recentProgress


def copied(target: FileTopic) -> list[int]:
    found: list[int] = []
    for id_ in sorted(target.layout.segments):
        for entry in target.entries(id_):
            found += [int(value or b"") for value in decode_columns(entry.data, 2**20).values]
    return found


def check_key_order(rows: list[int]) -> None:
    for key in range(KEYS):
        of_key = [n for n in rows if n % KEYS == key]
        assert of_key == sorted(of_key), f"key {key} is out of order"


def test_a_topic_that_was_split_and_merged_is_read_once_and_in_key_order(
    spark: Any, topic: FileTopic
) -> None:
    topic.send(numbers(0, 100))
    topic.split(0)
    topic.send(numbers(100, 200))
    topic.merge(1, 2)
    topic.send(numbers(200, 300))
    frame = read(spark, topic, includeHash="true", includeEventTime="true", includeHeaders="true")
    rows = frame.orderBy("segment", "position").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(300))
    check_key_order([int(bytes(row.value)) for row in rows])
    assert {row.topic for row in rows} == {"orders"}
    assert all(row.keyHash & 0xFFFFFFFF == key_hash(bytes(row.key)) for row in rows)


def test_one_frame_may_be_used_by_many_queries(spark: Any, topic: FileTopic) -> None:
    # Guards against filter push-down, which would give the second query the rows of the first.
    topic.send(numbers(0, 100))
    topic.split(0)
    topic.send(numbers(100, 300))
    frame = read(spark, topic)
    first = frame.filter("segment = 1")
    assert 0 < first.count() < 200
    assert frame.count() == 300
    assert first.union(frame.filter("segment <> 1")).count() == 300


def test_columns_are_chosen_by_schema_and_sql_sees_a_view(spark: Any, topic: FileTopic) -> None:
    topic.send(numbers(0, 20))
    pruned = (
        spark.read.format(FORMAT)
        .option("service.url", str(topic.root))
        .schema("position bigint, key binary")
        .load(topic.name)
    )
    assert sorted(row.position for row in pruned.collect()) == list(range(20))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING {FORMAT} "
        f"OPTIONS (`service.url` '{topic.root}', subscribe '{topic.name}')"
    )
    assert spark.sql("SELECT max(position) FROM v").first()[0] == 19


def test_an_empty_topic_has_no_rows(spark: Any, topic: FileTopic) -> None:
    assert read(spark, topic).count() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxOffsetPerTriger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({"startingOffsets": "latest"}, "makes no sense in a batch query"),
    ],
)
def test_mistakes_are_shown_to_the_user(
    spark: Any, topic: FileTopic, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        read(spark, topic, **options).count()


def test_writing_needs_append_and_says_so(spark: Any, topic: FileTopic) -> None:
    frame = spark.range(3).select(sql.col("id").cast("string").alias("value"))
    writer = frame.write.format(FORMAT).option("service.url", str(topic.root)).option("topic", topic.name)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.mode("overwrite").save()
    writer.mode("append").save()
    assert sorted(copied(topic)) == [0, 1, 2]


def test_rows_written_are_read_back(spark: Any, topic: FileTopic) -> None:
    topic.split(0)
    rows = spark.range(0, 5000, 1, 3).select(
        sql.concat(sql.lit("key-"), (sql.col("id") % KEYS).cast("string")).alias("key"),
        sql.col("id").cast("string").cast("binary").alias("value"),
        sql.lit("orders").alias("topic"),
    )
    rows.write.format(FORMAT).option("service.url", str(topic.root)).mode("append").save()
    assert sorted(values(read(spark, topic))) == list(range(5000))


def test_a_stream_stopped_while_the_topic_splits_goes_on_from_its_checkpoint(
    spark: Any, topic: FileTopic, tmp_path: Path
) -> None:
    target = FileTopic(topic.root, "copy").create()
    checkpoint = tmp_path / "checkpoint"
    topic.send(numbers(0, 200))
    progress = run_available(
        read_stream(spark, topic, startingOffsets="earliest", maxOffsetsPerTrigger="90"), target, checkpoint
    )
    assert [p.numInputRows for p in progress if p.numInputRows] == [90, 90, 20]
    topic.split(0)
    topic.send(numbers(200, 400))
    topic.merge(1, 2)
    topic.send(numbers(400, 500))
    run_available(read_stream(spark, topic), target, checkpoint)
    rows = copied(target)
    assert sorted(rows) == list(range(500))
    check_key_order(rows)
    # A last batch repeated after a crash is the same batch: Spark finds it in the offset log and no commit.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for leftover in (last, last.parent / f".{last.name}.crc"):
        leftover.unlink(missing_ok=True)
    topic.split(3)
    run_available(read_stream(spark, topic), target, checkpoint)
    again = copied(target)
    assert sorted(set(again)) == list(range(500))
    assert len(again) > len(rows)


def test_a_stream_from_latest_loses_nothing_that_comes_while_it_starts(
    spark: Any, topic: FileTopic, tmp_path: Path
) -> None:
    target = FileTopic(topic.root, "copy").create()
    topic.send(numbers(0, 50))
    query = copying(read_stream(spark, topic), target, tmp_path / "checkpoint").start()
    try:
        sent = 50
        # Messages race the start; once the first batch has pinned it, everything after must arrive.
        while not list((tmp_path / "checkpoint").glob("commits/0")):
            topic.send(numbers(sent, sent + 5))
            sent += 5
            assert query.isActive, query.exception()
        pinned = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
        topic.send(numbers(sent, sent + 20))
        sent += 20
        query.processAllAvailable()
    finally:
        query.stop()
    rows = copied(target)
    assert rows == sorted(rows)
    assert rows == list(range(sent - len(rows), sent))
    assert f'"0": {sent - len(rows)}' in pinned


def test_the_task_properties_a_later_sink_needs_exist(spark: Any, topic: FileTopic, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()

    def note(frame: Any, number: int) -> None:
        frame.mapInArrow(_note_properties(str(seen)), "x int").write.format("noop").mode("overwrite").save()

    topic.send(numbers(0, 10))
    query = (
        read_stream(spark, topic, startingOffsets="earliest")
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert {path.name for path in seen.iterdir()} >= {f"0-{query.id}"}


def _note_properties(directory: str) -> Any:
    def note(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        query = context.getLocalProperty("sql.streaming.queryId")
        for _ in batches:
            (Path(directory) / f"{batch}-{query}").touch()
        return iter(())

    return note


def test_the_format_is_found_without_registration(spark: Any) -> None:
    with pytest.raises(PySparkException, match=r"service\.url is required"):
        spark.read.format("anabranch").option("subscribe", "orders").load()


def test_the_helper_plans_as_many_tasks_as_there_are_cores(spark: Any) -> None:
    from anabranch.spark import read_stream as helper

    frame = helper(
        spark,
        "pulsar://127.0.0.1:1",
        ["orders", "payments"],
        schema="key binary, position bigint",
        options={"startingOffsets": {"v": 1, "topics": {}}, "chainSegments": False},
    )
    assert frame.isStreaming
    assert frame.columns == ["key", "position"]
