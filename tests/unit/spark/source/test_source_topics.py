"""Patterns, missing topics and times, as Spark calls the readers; topics in files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from anabranch.errors import (
    DataLossError,
    InvalidConfigurationError,
    OperationTimeoutError,
    TopicNotFoundError,
)
from anabranch.spark.options.queries import read_source_options
from anabranch.spark.source.batch_reader import BatchReader
from anabranch.spark.source.stream_reader import StreamReader
from tests.spark.files import FileReader, FileService, FileTopic
from tests.unit.spark.readers import (
    SCHEMA,
    batch_of,
    drain,
    numbers,
    pinned_at_earliest,
    read,
    stream_of,
    through_text,
)


class ListingStreamReader(StreamReader):
    """Lists the topics and looks them up at every call, as if its answers were too old."""

    def _current(self) -> Any:
        self._view_until = self._listed_until = 0.0
        return super()._current()


def reading(root: Path, **given: str) -> ListingStreamReader:
    options = read_source_options({"service.url": str(root), "startingOffsets": "earliest", **given})
    return ListingStreamReader(FileService(str(root)), options, SCHEMA)


def test_topics_that_appear_are_read_from_their_beginning(tmp_path: Path) -> None:
    FileTopic(tmp_path, "orders-a").create().send(numbers(0, 5))
    FileTopic(tmp_path, "other").create().send(numbers(90, 95))
    reader = reading(tmp_path, subscribePattern="orders-.*", startingOffsets="latest")
    rows, end, _ = drain(reader, reader.initialOffset())
    assert rows == []
    FileTopic(tmp_path, "orders-b").create().send(numbers(5, 9))
    rows, _, _ = drain(reader, end)
    assert sorted(rows) == list(range(5, 9))


@pytest.mark.parametrize("fails", [True, False])
def test_a_deleted_topic_is_a_loss_as_the_user_wants(tmp_path: Path, fails: bool) -> None:
    for name in ("orders-a", "orders-b"):
        FileTopic(tmp_path, name).create().send(numbers(0, 5))
    reader = reading(tmp_path, subscribePattern="orders-.*", failOnDataLoss=str(fails).lower())
    _, end, _ = drain(reader, reader.initialOffset())
    (tmp_path / "orders-a").rename(tmp_path / "gone")
    FileTopic(tmp_path, "orders-b").send(numbers(5, 8))
    if fails:
        with pytest.raises(DataLossError, match="orders-a was deleted"):
            drain(reader, end)
    else:
        rows, end, _ = drain(reader, end)
        assert sorted(rows) == [5, 6, 7]
        assert list(end["topics"]) == ["orders-b"]


def test_a_planned_batch_of_a_topic_that_vanished_is_a_loss(tmp_path: Path) -> None:
    for name in ("orders-a", "orders-b"):
        FileTopic(tmp_path, name).create().send(numbers(0, 5))
    reader = reading(tmp_path, subscribePattern="orders-.*", failOnDataLoss="false")
    start = pinned_at_earliest(reader)
    end = reader.latestOffset(start, ReadAllAvailable())
    (tmp_path / "orders-a").rename(tmp_path / "gone")
    restarted = reading(tmp_path, subscribePattern="orders-.*", failOnDataLoss="false")
    assert len(read(restarted, restarted.partitions(start, end))) == 5
    with pytest.raises(DataLossError, match="orders-a was deleted"):
        reading(tmp_path, subscribePattern="orders-.*").partitions(start, end)


def test_a_stream_waits_for_its_topic_and_then_reads_all_of_it(tmp_path: Path) -> None:
    with pytest.raises(TopicNotFoundError):
        drain(reading(tmp_path, subscribe="late"), {"v": 1, "starting": "latest"})
    reader = reading(tmp_path, subscribe="late", waitForTopic="true", startingOffsets="latest")
    rows, end, _ = drain(reader, reader.initialOffset())
    FileTopic(tmp_path, "late").create().send(numbers(0, 4))
    rows, _, _ = drain(reader, end)
    assert sorted(rows) == list(range(4))


def test_a_batch_waits_no_longer_than_the_poll_timeout(tmp_path: Path) -> None:
    given = {"service.url": str(tmp_path), "subscribe": "late", "pollTimeoutMs": "1"}
    options = read_source_options({**given, "waitForTopic": "true"})
    with pytest.raises(TopicNotFoundError, match="late did not appear"):
        BatchReader(FileService(str(tmp_path)), options, SCHEMA).partitions()


def test_a_list_of_paths_names_several_topics(tmp_path: Path) -> None:
    options = read_source_options({"service.url": "x", "paths": '["b", "topic://public/default/a"]'})
    assert options.topics == ("a", "b")


def test_times_cut_a_split_topic_without_gap_or_overlap(topic: FileTopic) -> None:
    for step in range(6):
        topic.send(numbers(100 * step, 100 * step + 50), at_ms=1000 * step)
        if step == 2:
            topic.split(0)
    borders = [0, 1000, 1500, 3000, 4000, 9999]
    found = []
    for lo, hi in pairwise(borders):
        options = {"startingTimestamp": str(lo), "startingOffsetsByTimestampStrategy": "latest"}
        reader = batch_of(topic, **options, endingTimestamp=str(hi))
        rows = sorted(read(reader, reader.partitions()))
        assert {row // 100 * 1000 for row in rows} <= set(range(lo, hi))
        found += rows
    assert sorted(found) == sorted(n for step in range(6) for n in range(100 * step, 100 * step + 50))


def test_a_start_at_a_time_is_pinned_once(topic: FileTopic) -> None:
    topic.send(numbers(0, 5), at_ms=1000)
    topic.send(numbers(5, 9), at_ms=2000)
    reader = stream_of(topic, startingTimestamp="1970-01-01T00:00:02Z")
    pinned = through_text(reader.latestOffset(through_text(reader.initialOffset()), ReadAllAvailable()))
    rows, _, _ = drain(reader, pinned)
    assert sorted(rows) == list(range(5, 9))
    late = stream_of(topic, startingOffsetsByTimestamp='{"orders": 5000}')
    with pytest.raises(InvalidConfigurationError, match="no message that was published at 5000"):
        late.latestOffset(late.initialOffset(), ReadAllAvailable())


def test_the_committed_cut_is_mirrored_and_a_new_query_starts_there(topic: FileTopic) -> None:
    topic.send(numbers(0, 5))
    reader = stream_of(topic, startingOffsets="earliest", subscription="lake")
    pinned = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    kept = FileService(str(topic.root)).reader()
    assert kept.cursor_positions("orders", kept.topology("orders"), "lake") == {0: 0}
    end = reader.latestOffset(pinned, ReadAllAvailable())
    reader.commit(through_text(end))
    topic.split(0)
    topic.send(numbers(5, 9))
    again = stream_of(topic, startingOffsets="subscription", subscription="lake")
    # The mirror pauses for a while after each cut; the idle query catches up.
    while kept.cursor_positions("orders", kept.topology("orders"), "lake") != {0: 5, 1: 0, 2: 0}:
        reader.latestOffset(end, ReadAllAvailable())
    rows, _, _ = drain(again, through_text(again.initialOffset()))
    assert sorted(rows) == list(range(5, 9))


def test_a_start_from_a_missing_subscription_is_refused(topic: FileTopic) -> None:
    reader = stream_of(topic, startingOffsets="subscription", subscription="lake")
    with pytest.raises(InvalidConfigurationError, match="has no subscription lake"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_a_mirror_that_fails_does_not_fail_the_query(
    topic: FileTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationTimeoutError("another consumer may have its segments")

    monkeypatch.setattr(FileReader, "mirror", fail)
    topic.send(numbers(0, 5))
    reader = stream_of(topic, startingOffsets="earliest", subscription="lake")
    rows, end, _ = drain(reader, reader.initialOffset())
    reader.commit(end)
    assert sorted(rows) == list(range(5))
