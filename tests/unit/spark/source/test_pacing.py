"""Limited micro-batches over topics in files: oldest messages first, and few bytes read twice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.files import FileReader, FileTopic
from tests.unit.spark.readers import drain, numbers, read, stream_of, through_text

HOUR_MS = 3_600_000


def batches_of(reader: Any) -> list[list[int]]:
    """The values of each micro-batch until nothing is left."""
    start = reader.initialOffset()
    found: list[list[int]] = []
    while True:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end is start:
            return [rows for rows in found if rows]
        found.append(sorted(read(reader, reader.partitions(start, through_text(end)))))
        start = through_text(end)


def test_limited_batches_read_all_segments_up_to_a_common_time(tmp_path: Any) -> None:
    topic = FileTopic(tmp_path, "orders").create(4)
    for n in range(100):
        # Segments fill in bursts: a batch in proportion to backlogs would mix hours.
        topic.send(numbers(20 * n, 20 * n + (20 if n % 7 else 3)), at_ms=n * HOUR_MS)
    found = batches_of(stream_of(topic, startingOffsets="earliest", maxOffsetsPerTrigger="250"))
    assert all(len(rows) <= 250 for rows in found)
    hours = [[n // 20 for n in rows] for rows in found]
    assert all(max(before) <= min(after) for before, after in pairwise(hours))
    assert len(found) <= 9, "most of the limit is used"


def test_one_burst_in_one_millisecond_is_shared_within_the_limit(tmp_path: Any) -> None:
    topic = FileTopic(tmp_path, "orders").create(4)
    topic.send(numbers(0, 200))
    found = batches_of(stream_of(topic, startingOffsets="earliest", maxOffsetsPerTrigger="3"))
    assert all(len(rows) <= 3 for rows in found)
    assert sorted(n for rows in found for n in rows) == list(range(200))


def test_clocks_that_fall_behind_do_not_stop_a_query(tmp_path: Any) -> None:
    topic = FileTopic(tmp_path, "orders").create(3)
    for n in range(20):
        topic.send(numbers(10 * n, 10 * n + 10), at_ms=(20 - n) * HOUR_MS)
    found = batches_of(stream_of(topic, startingOffsets="earliest", maxOffsetsPerTrigger="30"))
    assert sorted(n for rows in found for n in rows) == list(range(200))


def test_a_broker_that_tells_no_times_gets_fair_shares(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileReader, "stored_at", lambda *_: {})
    monkeypatch.setattr(FileReader, "stored_after", lambda *_: {})
    topic = FileTopic(tmp_path, "orders").create(4)
    topic.send(numbers(0, 200))
    found = batches_of(stream_of(topic, startingOffsets="earliest", maxOffsetsPerTrigger="30"))
    assert sorted(n for rows in found for n in rows) == list(range(200))
    assert len(found) <= 8


@pytest.mark.parametrize("chain", ["true", "false"])
def test_others_wait_for_children_that_a_batch_cannot_read_yet(tmp_path: Any, chain: str) -> None:
    topic = FileTopic(tmp_path, "orders").create(2)
    topic.send(numbers(0, 2000), at_ms=1 * HOUR_MS)
    topic.split(0, [4096 * n for n in range(1, 8)])
    topic.send(numbers(2000, 2100), at_ms=2 * HOUR_MS)
    topic.send(numbers(2100, 2200), at_ms=3 * HOUR_MS)
    found = batches_of(stream_of(topic, startingOffsets="earliest", chainSegments=chain))
    assert len(found) == 2
    assert max(found[0]) < 2100, "a message of the third hour would move the watermark past the second"
    assert sorted(n for rows in found for n in rows) == list(range(2200))


@pytest.mark.parametrize("rows", [40, 20_000])
def test_few_bytes_are_read_more_than_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    fetched = 0
    read_slices = FileReader.read

    def counting(self: FileReader, *args: Any) -> Any:
        nonlocal fetched
        for number, entries in read_slices(self, *args):
            fetched += sum(len(entry.data) for entry in entries)
            yield number, entries

    monkeypatch.setattr(FileReader, "read", counting)
    topic = FileTopic(tmp_path, "orders").create()
    topic.send(numbers(0, rows), batch=500)
    topic.split(0, [4096 * n for n in range(1, 16)])
    topic.send(numbers(rows, rows + 2000), batch=500)
    stored = sum(len(entry.data) for id_ in topic.layout.segments for entry in topic.entries(id_))
    reader = stream_of(topic, startingOffsets="earliest")
    found, _, batches = drain(reader, reader.initialOffset(), ReadAllAvailable())
    assert sorted(found) == list(range(rows + 2000))
    assert batches == (1 if rows == 40 else 2)
    assert fetched / stored < 1.5
