"""Which entries of a row log are rows of a pinned batch, when a topic stored some of them twice."""

from __future__ import annotations

from anabranch.client.bulk.encoded_rows import EncodedPart
from anabranch.client.bulk.segment_reader import RawEntry
from anabranch.model.layout import Layout
from anabranch.protocol.batches import MessageBatch
from anabranch.protocol.restamping import restamped
from anabranch.spark.decide.sink.records import BatchName, Pin
from anabranch.spark.sink.staging import Destination, StagedEntries, stamp

LAYOUT = Layout.initial(1, now_ms=0)
PART = EncodedPart(0, b"", 1, 0, None, (5, 5), None)
PIN = Pin(BatchName("q", 0), {"a": 3, "b": 1}, 0, 10, "s")


def entry(attempt: str, number: int, place: int) -> RawEntry:
    batch = MessageBatch()
    batch.add_encoded(b"", 1, 0, None)
    built = batch.build(attempt, 1, hash_range=(5, 5))
    to = Destination(attempt, "orders", LAYOUT, number)
    return RawEntry(place, 1, 1, place, 0, restamped(built, lambda metadata: stamp(metadata, PART, to)))


class ReaderOfList:
    def __init__(self, *parts: list[RawEntry]) -> None:
        self._parts = list(parts)

    async def read(self) -> list[RawEntry]:
        return self._parts.pop(0) if self._parts else []

    async def close(self) -> None:
        """Nothing is open."""


async def test_entries_that_a_task_sent_again_count_once() -> None:
    staged = StagedEntries(
        ReaderOfList(
            [entry("a", 0, 0), entry("other", 0, 1), entry("a", 1, 2), entry("b", 0, 3)],
            [entry("other", 1, 4)],
            [entry("a", 0, 5), entry("a", 1, 6), entry("a", 2, 7), entry("b", 0, 8)],
        ),
        PIN,
    )
    found = []
    while (entries := await staged.read()) is not None:
        found += [(one.stamp.attempt, one.stamp.number) for one in entries]
    assert found == [("a", 0), ("a", 1), ("b", 0), ("a", 2)]
    assert staged.last is not None
    assert staged.last.first_index == 8
