"""Streaming reads as Spark calls them, without Spark: topics in files."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from anabranch.errors import (
    DataLossError,
    InvalidConfigurationError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from anabranch.spark.decide.source.topology import Topology
from anabranch.spark.source.stream_reader import StreamReader
from tests.spark.files import FileReader, FileService, FileTopic
from tests.unit.spark.readers import (
    SCHEMA,
    batch_of,
    drain,
    numbers,
    options,
    pinned_at_earliest,
    read,
    stream_of,
    through_text,
)


def test_latest_is_pinned_by_a_first_batch_without_rows(topic: FileTopic) -> None:
    topic.send(numbers(0, 50))
    reader = stream_of(topic)
    asked = through_text(reader.initialOffset())
    topic.send(numbers(50, 60))
    pinned = through_text(reader.latestOffset(asked, ReadAllAvailable()))
    # Messages between the first and the second call of initialOffset must not be lost.
    topic.send(numbers(60, 70))
    again = through_text(reader.initialOffset())
    assert again == asked
    assert list(reader.partitions(again, pinned)) == []
    rows, _, _ = drain(reader, pinned)
    assert sorted(rows) == list(range(60, 70))


def test_a_restart_replays_the_first_data_batch_alike(topic: FileTopic) -> None:
    topic.send(numbers(0, 50))
    reader = stream_of(topic, startingOffsets="earliest")
    asked = through_text(reader.initialOffset())
    end = through_text(reader.latestOffset(asked, ReadAllAvailable()))
    topic.split(0)
    topic.send(numbers(50, 90))
    # Spark asks a reader that it starts again for the initial offset; other options must not skip the batch.
    for given in ({}, {"startingOffsets": "latest"}, {"subscription": "copy"}):
        restarted = stream_of(topic, **{"startingOffsets": "earliest", **given})
        start = through_text(restarted.initialOffset())
        assert sorted(read(restarted, restarted.partitions(start, end))) == list(range(50))
    rows, _, _ = drain(restarted, end)
    assert sorted(rows) == list(range(50, 90))


def test_a_repeated_first_batch_of_a_topic_that_was_created_again_is_a_loss(topic: FileTopic) -> None:
    topic.send(numbers(0, 50))
    reader = stream_of(topic, startingOffsets="earliest")
    asked = through_text(reader.initialOffset())
    end = through_text(reader.latestOffset(asked, ReadAllAvailable()))
    topic.create_again()
    topic.send(numbers(0, 50))
    with pytest.raises(DataLossError, match="created again"):
        stream_of(topic, startingOffsets="earliest").partitions(asked, end)


def test_the_first_batch_with_a_subscription_has_no_rows(topic: FileTopic) -> None:
    topic.send(numbers(0, 50))
    reader = stream_of(topic, startingOffsets="earliest", subscription="copy")
    asked = through_text(reader.initialOffset())
    pinned = through_text(reader.latestOffset(asked, ReadAllAvailable()))
    assert list(reader.partitions(asked, pinned)) == []
    assert sorted(drain(reader, pinned)[0]) == list(range(50))


def test_nothing_new_gives_the_very_same_offset(topic: FileTopic) -> None:
    topic.send(numbers(0, 5))
    reader = stream_of(topic, startingOffsets="earliest")
    _, end, _ = drain(reader, reader.initialOffset())
    assert reader.latestOffset(end, ReadAllAvailable()) is end
    topic.split(0)
    moved = reader.latestOffset(end, ReadAllAvailable())
    assert reader.partitions(end, moved) == []
    assert reader.latestOffset(moved, ReadAllAvailable()) is moved


def test_a_view_is_kept_for_a_while(topic: FileTopic) -> None:
    topic.send(numbers(0, 5))
    given = options(topic, startingOffsets="earliest", **{"metadata.cache.ttl.ms": "60s"})
    reader = StreamReader(FileService(str(topic.root)), given, SCHEMA)
    _, end, _ = drain(reader, reader.initialOffset())
    topic.send(numbers(5, 9))
    assert reader.latestOffset(end, ReadAllAvailable()) is end


def test_limits_hold_in_rows(topic: FileTopic) -> None:
    topic.send(numbers(0, 100))
    reader = stream_of(topic, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    rows, _, batches = drain(reader, reader.initialOffset())
    assert sorted(rows) == list(range(100))
    assert batches == 4
    assert drain(reader, reader.initialOffset(), ReadAllAvailable())[2] == 1


def test_a_trigger_that_wants_everything_ignores_all_limits(topic: FileTopic) -> None:
    topic.send(numbers(0, 50))
    limits = {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "9", "minOffsetsPerTrigger": "1"}
    reader = stream_of(topic, startingOffsets="earliest", **limits)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert read(reader, reader.partitions(start, end)) == list(range(50))


def test_limits_hold_in_bytes_measured_from_the_messages(topic: FileTopic) -> None:
    topic.send([("k", b"1" * 1000) for _ in range(100)])
    reader = stream_of(topic, startingOffsets="earliest", maxBytesPerTrigger="10k")
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxBytes)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(10240))
    assert 8 <= end["topics"]["orders"]["segs"]["0"] <= 10


def test_a_minimum_waits_until_its_delay_is_over(topic: FileTopic) -> None:
    topic.send(numbers(0, 5))
    waiting = stream_of(topic, startingOffsets="earliest", minOffsetsPerTrigger="6", maxTriggerDelay="10m")
    assert waiting.getDefaultReadLimit() == ReadMinRows(6)
    pinned = waiting.latestOffset(waiting.initialOffset(), ReadMinRows(6))
    assert waiting.latestOffset(pinned, ReadMinRows(6)) is pinned
    patience_over = stream_of(
        topic, startingOffsets="earliest", minOffsetsPerTrigger="6", maxTriggerDelay="0"
    )
    assert patience_over.latestOffset(pinned, ReadMinRows(6)) is not pinned
    topic.send(numbers(5, 6))
    assert waiting.latestOffset(pinned, ReadMinRows(6)) is not pinned


def test_available_now_ends_though_messages_and_segments_keep_coming(topic: FileTopic) -> None:
    topic.send(numbers(0, 40))
    reader = stream_of(
        topic, startingOffsets="earliest", maxOffsetsPerTrigger="15", minOffsetsPerTrigger="15"
    )
    reader.prepareForTriggerAvailableNow()
    topic.send(numbers(40, 80))
    topic.split(0)
    topic.send(numbers(80, 90))
    rows, end, _ = drain(reader, reader.initialOffset())
    assert sorted(rows) == list(range(40))
    later = stream_of(topic, startingOffsets="earliest")
    assert sorted(drain(later, end)[0]) == list(range(40, 90))


@pytest.mark.parametrize("chain", ["true", "false"])
def test_generations_are_read_parents_first(topic: FileTopic, chain: str) -> None:
    topic.send(numbers(0, 200))
    topic.split(0)
    topic.send(numbers(200, 400))
    topic.split(1)
    topic.merge(4, 2)
    topic.send(numbers(400, 600))
    reader = stream_of(topic, startingOffsets="earliest", chainSegments=chain, maxPartitions="2")
    rows, _, batches = drain(reader, reader.initialOffset())
    assert sorted(rows) == list(range(600))
    for key in range(11):
        of_key = [n for n in rows if n % 11 == key]
        assert of_key == sorted(of_key)
    assert batches == (1 if chain == "true" else 3)


def test_the_newest_tails_are_reported_beside_the_progress(topic: FileTopic) -> None:
    reader = stream_of(topic, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    assert reader.reportLatestOffset() is None
    topic.send(numbers(0, 9))
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["topics"]["orders"]["segs"] == {"0": 9}


def test_a_topic_added_later_is_read_from_its_start(topic: FileTopic) -> None:
    topic.send(numbers(0, 5))
    _, end, _ = drain(stream_of(topic), stream_of(topic).initialOffset())
    FileTopic(topic.root, "more").create().send(numbers(5, 9))
    both = stream_of(topic, subscribe="orders,more")
    rows, end, _ = drain(both, end)
    assert sorted(rows) == [5, 6, 7, 8]
    only = stream_of(topic)
    topic.send(numbers(9, 12))
    rows, end, _ = drain(only, end)
    assert sorted(rows) == [9, 10, 11]
    assert list(end["topics"]) == ["orders"]


def test_trimmed_messages_fail_the_query_unless_it_may_lose_them(topic: FileTopic) -> None:
    topic.send(numbers(0, 70), batch=7)
    pinned = pinned_at_earliest(stream_of(topic))
    topic.trim(0, entries=3)
    strict, loose = stream_of(topic), stream_of(topic, failOnDataLoss="false")
    end = strict.latestOffset(pinned, ReadAllAvailable())
    with pytest.raises(DataLossError, match=r"segment 0 of topic orders .* position 0, .* 21"):
        strict.partitions(pinned, end)
    assert sorted(read(loose, loose.partitions(pinned, end))) == list(range(21, 70))


def test_messages_trimmed_between_plan_and_task_are_noticed_by_the_task(topic: FileTopic) -> None:
    topic.send(numbers(0, 70), batch=7)
    reader = batch_of(topic)
    planned = reader.partitions()
    topic.trim(0, entries=3)
    with pytest.raises(DataLossError, match="position 0, but the next message stored is 21"):
        read(reader, planned)


def test_a_segment_that_ends_early_is_noticed_by_the_task(topic: FileTopic) -> None:
    topic.send(numbers(0, 20))
    reader = batch_of(topic)
    planned = reader.partitions()
    log = topic.directory / "segment-0"
    log.write_bytes(b"")
    with pytest.raises(DataLossError, match="ended at position 0, before 20"):
        read(reader, planned)


def test_a_topic_made_anew_is_an_error(topic: FileTopic) -> None:
    topic.send(numbers(0, 20))
    reader = stream_of(topic, startingOffsets="earliest")
    _, end, _ = drain(reader, reader.initialOffset())
    topic.split(0)
    topic.forget(0, remember=False)
    with pytest.raises(DataLossError, match="created again"):
        stream_of(topic).latestOffset(end, ReadAllAvailable())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endingOffsets": "latest"}, "has no end"),
        ({"splitBytes": "5m"}, "splitBytes has no meaning"),
        ({"ordering": "none", "bucketsPerSegment": "5"}, "needs ordering=key"),
    ],
)
def test_options_without_meaning_in_a_stream_are_refused(
    topic: FileTopic, given: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=words):
        stream_of(topic, **given)


def test_a_stream_without_order_is_cut_by_position(topic: FileTopic) -> None:
    topic.send(numbers(0, 100))
    reader = stream_of(topic, startingOffsets="earliest", ordering="none", maxRecordsPerPartition="30")
    rows, _, _ = drain(reader, reader.initialOffset())
    assert sorted(rows) == list(range(100))


def test_a_missing_topic_is_named(topic: FileTopic) -> None:
    with pytest.raises(TopicNotFoundError, match="nothing"):
        batch_of(topic, subscribe="nothing").partitions()


def test_errors_that_pass_are_tried_again(topic: FileTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [ServiceNotReadyError("not yet"), ServiceNotReadyError("not yet")]
    answer = FileReader.topology

    def sometimes(self: FileReader, name: str, *, fresh: bool = False) -> Topology:
        if failures:
            raise failures.pop()
        return answer(self, name, fresh=fresh)

    monkeypatch.setattr(FileReader, "topology", sometimes)
    batch_of(topic, **{"fetchOffset.retryIntervalMs": "0"}).partitions()
    failures = [ServiceNotReadyError("not yet")] * 9
    with pytest.raises(ServiceNotReadyError):
        batch_of(topic, **{"fetchOffset.retryIntervalMs": "0"}).partitions()
