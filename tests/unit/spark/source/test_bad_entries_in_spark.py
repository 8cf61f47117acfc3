"""Entries that cannot be decoded, as batch and stream readers of Spark meet them."""

from __future__ import annotations

import logging

import pytest

from anabranch.errors import BadEntryError
from simulation.world.lies import COUNTS, HIDDEN, UNREADABLE, Lie
from tests.spark.files import FileTopic
from tests.unit.spark.readers import batch_of, drain, numbers, read, stream_of

EARLIEST = {"v": 1, "starting": "earliest"}


@pytest.mark.parametrize("lie", UNREADABLE, ids=str)
def test_a_lie_between_honest_entries_costs_only_itself(
    topic: FileTopic, lie: Lie, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "anabranch.spark")
    topic.send(numbers(0, 20))
    topic.append_entry(0, lie.entry(), max(lie.tell("p", 2).num_messages % 100, 1))
    topic.send(numbers(20, 40))
    reader = batch_of(topic, badEntries="skip", ordering="key")
    assert read(reader, reader.partitions()) == list(range(40))
    told = [record.getMessage() for record in caplog.records]
    assert sum("position 20 of segment 0 of topic orders cannot be read" in text for text in told) == 1
    assert "skipped entries that could not be read: 1" in told


def test_many_bad_entries_in_one_batch_of_rows_are_told_apart(topic: FileTopic) -> None:
    for number in range(10):
        topic.send(numbers(7 * number, 7 * number + 7))
        topic.append_entry(0, HIDDEN[number % len(HIDDEN)].entry(), 3)
    reader = batch_of(topic, badEntries="skip", ordering="key")
    assert read(reader, reader.partitions()) == list(range(70))


def test_a_count_that_the_log_contradicts_is_bad(topic: FileTopic) -> None:
    topic.send(numbers(0, 5))
    topic.append_entry(0, COUNTS[7].entry(), 1000)
    topic.append_entry(0, COUNTS[8].entry(), 1)
    topic.send(numbers(5, 10))
    reader = batch_of(topic, badEntries="skip", ordering="key")
    assert read(reader, reader.partitions()) == list(range(10))


def test_a_stream_goes_on_past_a_bad_entry_and_through_a_split(topic: FileTopic) -> None:
    topic.send(numbers(0, 20))
    topic.append_entry(0, COUNTS[0].entry(), 1)
    topic.split(0)
    topic.send(numbers(20, 40))
    rows, _, _ = drain(stream_of(topic, badEntries="skip"), EARLIEST)
    assert sorted(rows) == list(range(40))


@pytest.mark.parametrize("given", [{}, {"badEntries": "fail"}])
@pytest.mark.parametrize("entry", [b"\x00\x00\x00\x02\xff\xff", COUNTS[0].entry(), HIDDEN[2].entry()])
def test_a_bad_entry_fails_the_query_unless_it_may_be_skipped(
    topic: FileTopic, given: dict[str, str], entry: bytes
) -> None:
    topic.send(numbers(0, 5))
    topic.append_entry(0, entry, 3)
    reader = batch_of(topic, maxRecordsPerPartition="5", **given)
    with pytest.raises(BadEntryError, match=r"position 5 of segment 0 of topic orders.*badEntries=skip"):
        read(reader, reader.partitions())
