"""Topics that were deleted and created again, and segments that were pruned, while a query was down."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from anabranch.errors import DataLossError, InvalidConfigurationError
from tests.spark.files import FileTopic
from tests.unit.spark.readers import (
    batch_of,
    drain,
    numbers,
    pinned_at_earliest,
    read,
    stream_of,
    through_text,
)

ALL = ReadAllAvailable()


def read_up_to_now(topic: FileTopic) -> dict[str, Any]:
    reader = stream_of(topic, startingOffsets="earliest")
    return drain(reader, reader.initialOffset())[1]


def without_logs(offset: dict[str, Any]) -> dict[str, Any]:
    """Return the offset as versions before the identities of logs wrote it."""
    found = through_text(offset)
    for topic in found["topics"].values():
        del topic["logs"]
    return found


@pytest.mark.parametrize("count", [50, 100, 150])
def test_a_topic_created_again_is_an_error_however_long_it_is(topic: FileTopic, count: int) -> None:
    topic.send(numbers(0, 100))
    end = read_up_to_now(topic)
    topic.create_again()
    topic.send(numbers(0, count))
    with pytest.raises(
        DataLossError,
        match=r"orders: it was deleted and created again .*segment 0 up to position 100.* new checkpoint",
    ):
        stream_of(topic).latestOffset(end, ALL)


@pytest.mark.parametrize("segments", [1, 3])
def test_a_query_that_may_lose_messages_reads_the_new_topic_from_its_start(
    topic: FileTopic, segments: int
) -> None:
    topic.send(numbers(0, 100))
    end = read_up_to_now(topic)
    topic.create_again(segments)
    topic.send(numbers(500, 650))
    rows, _, _ = drain(stream_of(topic, failOnDataLoss="false"), end)
    assert sorted(rows) == list(range(500, 650))


def test_an_old_cut_adopts_the_log_with_its_first_rows(topic: FileTopic) -> None:
    topic.send(numbers(0, 100))
    old = without_logs(read_up_to_now(topic))
    reader = stream_of(topic)
    assert reader.latestOffset(old, ALL) is old
    topic.send(numbers(100, 120))
    rows, end, _ = drain(reader, old)
    assert sorted(rows) == list(range(100, 120))
    assert end["topics"]["orders"]["logs"] == {"0": 1}


def test_an_old_cut_beyond_the_end_is_an_error(topic: FileTopic) -> None:
    topic.send(numbers(0, 100))
    old = without_logs(read_up_to_now(topic))
    topic.create_again()
    topic.send(numbers(200, 230))
    with pytest.raises(DataLossError, match=r"shorter than what the query has read .* 0 ends at 30"):
        stream_of(topic).latestOffset(old, ALL)
    rows, _, _ = drain(stream_of(topic, failOnDataLoss="false"), old)
    assert sorted(rows) == list(range(200, 230))


def test_a_log_that_lost_its_end_is_an_error_and_goes_on_there_if_allowed(topic: FileTopic) -> None:
    topic.send(numbers(0, 70), batch=7)
    end = read_up_to_now(topic)
    (topic.directory / "segment-0").write_bytes(b"")
    with pytest.raises(DataLossError, match="broker lost messages or was restored"):
        stream_of(topic).latestOffset(end, ALL)
    loose = stream_of(topic, failOnDataLoss="false")
    rows, end, _ = drain(loose, end)
    topic.send(numbers(900, 910))
    assert (rows, drain(loose, end)[0]) == ([], list(range(900, 910)))


def test_a_batch_that_is_repeated_on_a_new_topic_is_an_error(topic: FileTopic) -> None:
    topic.send(numbers(0, 100))
    reader = stream_of(topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    start = pinned_at_earliest(reader)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    topic.create_again()
    topic.send(numbers(0, 100))
    with pytest.raises(DataLossError, match=r"messages 0 to 40 of segment 0 .* created again"):
        stream_of(topic).partitions(start, end)
    assert stream_of(topic, failOnDataLoss="false").partitions(start, end) == []


def test_a_cut_of_an_earlier_topic_is_refused_as_a_start(topic: FileTopic) -> None:
    topic.send(numbers(0, 100))
    end = read_up_to_now(topic)
    topic.create_again()
    topic.send(numbers(0, 200))
    given = str(through_text(end)).replace("'", '"')
    with pytest.raises(InvalidConfigurationError, match="belongs to an earlier topic"):
        batch_of(topic, startingOffsets=given).partitions()


def test_a_segment_read_to_its_end_and_then_pruned_is_no_loss(topic: FileTopic) -> None:
    topic.send(numbers(0, 100))
    end = read_up_to_now(topic)
    assert list(end["topics"]["orders"]["segs"]) == ["0"]
    topic.split(0)
    topic.send(numbers(100, 150))
    topic.split(1)
    topic.forget(0)
    topic.send(numbers(150, 200))
    rows, _, _ = drain(stream_of(topic), end)
    assert sorted(rows) == list(range(100, 200))


def test_a_segment_pruned_before_it_was_read_is_a_loss_that_names_its_place(topic: FileTopic) -> None:
    topic.send(numbers(0, 98))
    reader = stream_of(topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    topic.split(0)
    topic.send(numbers(100, 150))
    topic.forget(0)
    strict, loose = stream_of(topic), stream_of(topic, failOnDataLoss="false")
    end = strict.latestOffset(start, ALL)
    with pytest.raises(DataLossError, match=r"segment 0 .* from position 40, but .* is 98"):
        strict.partitions(start, end)
    assert sorted(read(loose, loose.partitions(start, end))) == list(range(100, 150))
