"""Entries that are not in memory come a little later, and damaged ones as the setting says."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from anabranch.broker.serving.context import SubscriptionLimits
from anabranch.broker.serving.delivery.log_reader import LogReader
from anabranch.errors import AlreadyClosedError, DamagedEntriesError, PersistenceError
from anabranch.ledger.storage import Entry
from anabranch.model.ids import Position


class ColdLog:
    """A log with no entry in memory, as far as a log reader uses it."""

    name = "persistent://public/default/cold"

    def __init__(self, count: int) -> None:
        self.entries = [Entry(Position(1, n), n, n, 1, 0, b"%d" % n) for n in range(count)]
        self.extent = self
        self.next_ordinal = count
        self.reads: list[int] = []
        self.failure: Exception | None = None

    def position_of(self, ordinal: int) -> Position:
        return self.entries[ordinal].position

    def read_cached(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        return () if ordinal >= self.next_ordinal else None

    async def read(self, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        self.reads.append(ordinal)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return self.entries[ordinal : ordinal + max_entries]


class ColdReader:
    def __init__(self, log: ColdLog, *, skips_damaged: bool = False) -> None:
        self.passed: list[DamagedEntriesError] = []
        self.woken = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.source = LogReader(
            log,  # type: ignore[arg-type]
            self._spawn,
            self.woken.set,
            SubscriptionLimits(batch_entries=10, batch_bytes=10_000),
            self._pass,
        )
        self._skips_damaged = skips_damaged

    def _pass(self, error: DamagedEntriesError) -> Sequence[Entry] | None:
        self.passed.append(error)
        return () if self._skips_damaged else None

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


async def test_reading_stops_at_a_damaged_entry_until_the_reader_skips_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = ColdLog(5)
    reader = ColdReader(log)
    log.failure = DamagedEntriesError("rotten", 0, 1, 1)
    assert reader.source.read(0, 1) is None
    await reader.settle()
    assert reader.source.read(0, 1) is None
    assert log.reads == [0], "it is not tried again and again"
    assert reader.source.trouble is not None
    assert "stops at 1:0" in reader.source.trouble
    assert "damaged_entries" in reader.source.trouble
    log.failure = None
    assert reader.source.read(1, 1) is None
    await reader.settle()
    assert reader.source.read(1, 1)
    assert reader.source.trouble is None
    reader.source.forget()
    assert reader.source.read(0, 1) is None
    await reader.settle()
    assert reader.source.read(0, 1)


async def test_a_damaged_entry_is_read_again_after_its_file_was_repaired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = ColdLog(5)
    reader = ColdReader(log)
    log.failure = DamagedEntriesError("rotten", 0, 1, 1)
    reader.source.read(0, 1)
    for _ in range(10):
        await reader.woken.wait()
        reader.woken.clear()
        reader.source.read(0, 1)
    assert len([line for line in caplog.messages if "rotten" in line]) == 1, "one line, not one per attempt"
    await reader.settle()
    log.failure = None
    await reader.woken.wait()
    reader.source.read(0, 1)
    await reader.settle()
    assert reader.source.read(0, 1)


async def test_a_reader_that_skips_damage_reports_it_and_goes_on_behind_it() -> None:
    log = ColdLog(5)
    reader = ColdReader(log, skips_damaged=True)
    log.failure = DamagedEntriesError("rotten", 0, 3, 7)
    assert reader.source.read(0, 1) is None
    await reader.woken.wait()
    assert [(error.first, error.end, error.messages) for error in reader.passed] == [(0, 3, 7)]
    assert reader.source.trouble is None


@pytest.mark.parametrize("failure", [PersistenceError("busy"), OSError(errno.EIO, "I/O error")])
async def test_a_read_that_failed_is_tried_again_by_itself(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    log = ColdLog(5)
    reader = ColdReader(log)
    log.failure = failure
    assert reader.source.read(0, 1) is None
    for attempt in range(1, 6):
        await reader.woken.wait()
        reader.woken.clear()
        assert reader.source.errors == attempt
        assert "entry 0 cannot be read" in (reader.source.trouble or "")
        assert reader.source.read(0, 1) is None
    log.failure = None
    await reader.woken.wait()
    reader.source.read(0, 1)
    await reader.settle()
    assert reader.source.read(0, 1)
    assert reader.source.trouble is None
    assert len(caplog.messages) == 1, "one warning, not one per attempt"


async def test_an_unrelated_event_does_not_shorten_the_wait_for_a_disk_that_fails() -> None:
    log = ColdLog(5)
    reader = ColdReader(log)
    log.failure = PersistenceError("busy")
    reader.source.read(0, 1)
    await reader.settle()
    for _ in range(50):
        reader.source.read(0, 1)
    await reader.settle()
    assert log.reads == [0]


async def test_a_store_that_was_closed_is_not_read_again() -> None:
    log = ColdLog(5)
    reader = ColdReader(log)
    log.failure = AlreadyClosedError("the disk is closed")
    reader.source.read(0, 1)
    await reader.settle()
    await asyncio.sleep(100)
    assert log.reads == [0]
    assert not reader.woken.is_set()
