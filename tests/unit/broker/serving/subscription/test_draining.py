"""The drained buckets of a sealed log, and when the leader is notified of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from anabranch.broker.dispatch.drains import slots_of
from anabranch.broker.serving.context import LogUse
from anabranch.broker.serving.subscription.draining import LINGER_S, DrainReporter
from anabranch.errors import AlreadyClosedError, DamagedEntriesError, PersistenceError
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.memory import MemoryLog, MemoryStorage
from anabranch.ledger.storage import Entry
from anabranch.model.drains import ALL, Ranges
from anabranch.model.ranges import HashRange
from simulation.plugin import marker_options
from tests.harness.wire import batch, single

HALVES = (0x8000,)
LOWER, UPPER = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)


def test_the_slots_of_an_entry_are_its_stamp_or_its_only_key_or_unknown() -> None:
    assert slots_of(single(b"v", 0, key="k", hash_range=(5, 9))) == (5, 9)
    assert slots_of(single(b"v", 0, hash_range=(9, 5))) is None, "an impossible stamp says nothing"
    assert slots_of(single(b"v", 0, hash_range=(0, 70_000))) is None
    low, high = slots_of(single(b"v", 0, key="k")) or (0, 1)
    assert low == high
    assert slots_of(batch([b"a", b"b"])) is None
    assert slots_of(b"nonsense") is None


class Flushes(Cursor):
    """A cursor that says when it was asked to be durable."""

    def __init__(self, cursor: Cursor, events: list[object]) -> None:
        super().__init__(cursor.name, cursor.acks)
        self._cursor = cursor
        self._events = events

    async def flush(self, *, patient: bool = False) -> None:
        await self._cursor.flush()
        self._events.append("durable")


class Case:
    """A sealed log with one entry per given slot, and the drains reported of it."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.events: list[object] = []
        self.cursor = Flushes(log.cursors.open("sub", 0), self.events)
        self.tasks: set[asyncio.Task[None]] = set()
        use = LogUse(now_s=0)
        use.splits = HALVES
        self.drain = DrainReporter(log, self.cursor, use, self._spawn, self.events.append)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def acknowledge(self, *ordinals: int) -> None:
        self.cursor.acknowledge(ordinals)
        self.drain.check(at_end=False, by_buckets=True)

    @property
    def told(self) -> list[Ranges]:
        return [event for event in self.events if isinstance(event, tuple)]


@pytest.fixture
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    """A sealed log; the marker `case` names the slot of each entry."""
    storage = MemoryStorage()
    await storage.open()
    log = await storage.create("log")
    slots = marker_options(request.node, "case")["slots"]
    entries = {slot: single(b"v", slot, hash_range=(slot, slot)) for slot in slots}
    for slot in slots:
        log.append(entries[slot], 1, 1000, lambda appended, error: None)
    await log.seal()
    case = Case(log)
    yield case
    assert not case.tasks
    await storage.close()


@pytest.mark.case(slots=[1, 2, 0x9000, 0xA000])
async def test_buckets_are_told_together_after_a_moment_and_when_durable(case: Case) -> None:
    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(0.01)
    case.acknowledge(0, 1)
    await asyncio.sleep(LINGER_S / 2)
    assert case.told == []
    await asyncio.sleep(3 * LINGER_S)
    assert case.events == ["durable", (LOWER,)]
    assert await case.drain.drained() == (LOWER,)
    case.acknowledge(2)
    await asyncio.sleep(3 * LINGER_S)
    assert case.told == [(LOWER,)], "nothing new"
    case.acknowledge(3)
    await asyncio.sleep(3 * LINGER_S)
    assert case.told == [(LOWER,), ALL]


@pytest.mark.case(slots=[1, 2, 0x9000, 0xA000])
async def test_drains_in_quick_succession_are_reported_as_one(case: Case) -> None:
    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(0.01)
    for ordinal in range(4):
        case.acknowledge(ordinal)
        await asyncio.sleep(LINGER_S / 8)
    await asyncio.sleep(3 * LINGER_S)
    assert case.told == [ALL]


@pytest.mark.case(slots=[1, 0x9000])
async def test_nothing_is_known_before_the_reader_has_reached_the_end(case: Case) -> None:
    case.acknowledge(0)
    await asyncio.sleep(1)
    assert await case.drain.drained() == ()
    assert case.events == []
    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(1)
    assert case.told == [(LOWER,)]


@pytest.mark.case(slots=[1, 0x9000])
async def test_a_moved_cursor_takes_back_what_was_not_told_yet(case: Case) -> None:
    case.acknowledge(0)
    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(LINGER_S / 2)
    case.cursor.reset(0)
    case.drain.cursor_moved()
    await asyncio.sleep(1)
    assert case.told == []
    assert await case.drain.drained() == ()
    case.drain.check(at_end=True, by_buckets=True)
    case.acknowledge(1)
    await asyncio.sleep(1)
    assert case.told == [(UPPER,)]


@pytest.mark.case(slots=[1, *[0x9000] * 3_000, 2])
async def test_a_bucket_with_many_pending_entries_does_not_delay_another_bucket(case: Case) -> None:
    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(1)
    assert case.told == []
    case.acknowledge(0, 3_001)
    await asyncio.sleep(1)
    assert case.told == [(LOWER,)]
    case.acknowledge(*range(1, 3_001))
    await asyncio.sleep(1)
    assert case.told == [(LOWER,), ALL]


@pytest.mark.case(slots=[1, 0x9000])
async def test_a_cursor_that_moves_while_it_becomes_durable_has_drained_nothing(case: Case) -> None:
    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(1)
    case.events.clear()
    flush = case.cursor.flush

    async def slow(*, patient: bool = False) -> None:
        await flush()
        case.drain.cursor_moved()

    case.cursor.flush = slow  # type: ignore[method-assign]
    case.acknowledge(0)
    await asyncio.sleep(1)
    assert case.told == []


@pytest.mark.case(slots=[1, 0x9000, 0xA000])
async def test_a_damaged_entry_counts_for_all_buckets_until_it_is_acknowledged(case: Case) -> None:
    remembered = case.log.read_cached

    async def damaged(ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        if ordinal == 1:
            raise DamagedEntriesError("bits", 1, 2, 1)
        return remembered(ordinal, 1, max_bytes)

    case.log.read_cached = lambda *_: None  # type: ignore[method-assign, assignment]
    case.log.read = damaged  # type: ignore[method-assign]
    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(0.1)
    case.acknowledge(0)
    await asyncio.sleep(1)
    assert case.told == []
    case.acknowledge(1)
    await asyncio.sleep(1)
    assert case.told == [(LOWER,)]


@pytest.mark.case(slots=[1, 0x9000])
async def test_pending_entries_that_cannot_be_read_are_read_again_without_another_event(case: Case) -> None:
    remembered, failures = case.log.read_cached, 3

    async def broken(ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise PersistenceError("the disk cannot be read")
        return remembered(ordinal, max_entries, max_bytes)

    case.log.read_cached = lambda *_: None  # type: ignore[method-assign, assignment]
    case.log.read = broken  # type: ignore[method-assign]
    case.cursor.acknowledge([0])
    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(10)
    assert case.told == [(LOWER,)]


@pytest.mark.case(slots=[1])
async def test_an_end_that_is_not_durable_yet_is_made_durable_without_another_event(case: Case) -> None:
    flush, failures = case.cursor.flush, 3

    async def full(*, patient: bool = False) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise PersistenceError("the disk is full")
        await flush()

    case.cursor.flush = full  # type: ignore[method-assign]
    case.acknowledge(0)
    await asyncio.sleep(10)
    assert case.told == [ALL]


@pytest.mark.case(slots=[1, 2, 0x9000])
async def test_a_store_that_went_to_another_broker_is_no_error_here(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(*_: object) -> None:
        raise AlreadyClosedError("the storage is closed")

    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(0.01)
    case.cursor.flush = gone  # type: ignore[method-assign, assignment]
    case.acknowledge(0)
    case.acknowledge(1)
    await asyncio.sleep(10.0)
    case.drain.cursor_moved()
    case.log.read_cached = lambda *_: None  # type: ignore[method-assign, assignment]
    case.log.read = gone  # type: ignore[method-assign, assignment]
    case.drain.check(at_end=True, by_buckets=True)
    await asyncio.sleep(10.0)
    assert case.events == []
    assert caplog.records == []
