"""Batch reads as Spark calls them, without Spark: topics in files."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from anabranch.errors import (
    InvalidConfigurationError,
)
from anabranch.spark.source.batch_reader import BatchReader
from tests.spark.files import FileTopic
from tests.unit.spark.readers import (
    batch_of,
    numbers,
    read,
    stream_of,
)


def test_a_batch_reads_up_to_the_end_it_saw_when_planned(topic: FileTopic) -> None:
    topic.send(numbers(0, 30))
    topic.split(0)
    topic.send(numbers(30, 60))
    reader = batch_of(topic)
    planned = reader.partitions()
    topic.send(numbers(60, 90))
    assert sorted(read(reader, planned)) == list(range(60))


def test_a_batch_may_start_and_end_at_cuts(topic: FileTopic) -> None:
    topic.send(numbers(0, 30))
    cut = json.dumps(stream_of(topic).latestOffset({"v": 1, "starting": "latest"}, ReadAllAvailable()))
    topic.split(0)
    topic.send(numbers(30, 60))
    below, above = batch_of(topic, endingOffsets=cut), batch_of(topic, startingOffsets=cut)
    assert sorted(read(below, below.partitions())) == list(range(30))
    assert sorted(read(above, above.partitions())) == list(range(30, 60))


def test_a_batch_is_cut_by_position_where_the_user_wants(topic: FileTopic) -> None:
    topic.send(numbers(0, 100), batch=9)
    reader = batch_of(topic, maxRecordsPerPartition="13")
    planned = reader.partitions()
    assert len(planned) == 8
    assert sorted(read(reader, planned)) == list(range(100))


def test_a_batch_may_be_read_in_key_order(topic: FileTopic) -> None:
    topic.send(numbers(0, 100))
    topic.split(0)
    topic.send(numbers(100, 200))
    reader = batch_of(topic, ordering="key", maxPartitions="1")
    rows = read(reader, reader.partitions())
    for key in range(11):
        of_key = [n for n in rows if n % 11 == key]
        assert of_key == sorted(of_key)
    assert sorted(rows) == list(range(200))


def test_filters_are_never_pushed_to_the_source() -> None:
    # Spark reuses a plan that a filter narrowed for queries without the filter.
    assert BatchReader.pushFilters is DataSourceReader.pushFilters


def test_an_empty_topic_is_read_by_the_partition_spark_makes_up(topic: FileTopic) -> None:
    reader = batch_of(topic)
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingOffsets": "latest"}, "makes no sense"),
        ({"endingOffsets": "earliest"}, "makes no sense"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger has no meaning in a batch"),
        ({"ordering": "key", "splitBytes": "5m"}, "splitBytes has no meaning"),
        ({"bucketsPerSegment": "5"}, "needs ordering=key"),
    ],
)
def test_options_without_meaning_in_a_batch_are_refused(
    topic: FileTopic, given: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidConfigurationError, match=words):
        batch_of(topic, **given)
