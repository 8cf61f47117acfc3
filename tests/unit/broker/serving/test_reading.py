"""Entries that are not in memory come a little later, damaged ones not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from anabranch.broker.serving.context import SubscriptionLimits
from anabranch.broker.serving.reading import LogReader
from anabranch.errors import CorruptDataError, PersistenceError
from anabranch.ledger.storage import Entry
from anabranch.model.ids import Position


class ColdLog:
    """A log with no entry in memory, as far as a log reader uses it."""

    name = "persistent://public/default/cold"

    def __init__(self, count: int) -> None:
        self.entries = [Entry(Position(1, n), n, n, 1, 0, b"%d" % n) for n in range(count)]
        self.next_ordinal = count
        self.reads: list[int] = []
        self.failure: Exception | None = None

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        return () if ordinal >= self.next_ordinal else None

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        self.reads.append(ordinal)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return self.entries[ordinal : ordinal + max_entries]


class ColdReader:
    def __init__(self, log: ColdLog) -> None:
        self.woken = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.source = LogReader(
            log,  # type: ignore[arg-type]
            self._spawn,
            self.woken.set,
            SubscriptionLimits(batch_entries=10, batch_bytes=10_000),
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def settle(self) -> None:
        await asyncio.gather(*self.tasks)


async def test_a_cold_read_comes_back_when_it_is_done_and_serves_what_follows() -> None:
    log = ColdLog(30)
    reader = ColdReader(log)
    assert reader.source.read(5, 3) is None
    assert reader.source.read(5, 3) is None, "one read at a time"
    await reader.woken.wait()
    first = reader.source.read(5, 3)
    assert first is not None
    assert [entry.ordinal for entry in first] == [5, 6, 7]
    rest = reader.source.read(8, 100)
    assert rest is not None
    assert [entry.ordinal for entry in rest] == list(range(8, 15))
    assert log.reads == [5]
    assert reader.source.read(30, 5) == ()
    await reader.settle()


async def test_reading_stops_at_a_damaged_entry_until_the_reader_skips_it() -> None:
    log = ColdLog(5)
    reader = ColdReader(log)
    log.failure = CorruptDataError("rotten")
    assert reader.source.read(0, 1) is None
    await reader.settle()
    assert reader.source.read(0, 1) is None
    assert log.reads == [0], "it is not tried again and again"
    log.failure = None
    assert reader.source.read(1, 1) is None
    await reader.settle()
    assert reader.source.read(1, 1)
    reader.source.forget()
    assert reader.source.read(0, 1) is None
    await reader.settle()
    assert reader.source.read(0, 1)


async def test_a_read_that_failed_is_tried_again_with_the_next_event() -> None:
    log = ColdLog(5)
    reader = ColdReader(log)
    log.failure = PersistenceError("busy")
    assert reader.source.read(0, 1) is None
    await reader.settle()
    log.failure = None
    assert reader.source.read(0, 1) is None
    await reader.settle()
    assert reader.source.read(0, 1)
