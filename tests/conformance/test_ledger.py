"""One suite for the ledger port, run on every adapter and, for the files, on every disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest

from anabranch.clock import SystemClock
from anabranch.errors import (
    AlreadyClosedError,
    InvalidNameError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from anabranch.ledger.files import FileStorage, StorageLimits
from anabranch.ledger.memory import MemoryStorage
from anabranch.ledger.os_disk import OsDisk
from anabranch.ledger.storage import Entry, SegmentLog, SegmentStorage
from anabranch.model.ids import EARLIEST, LATEST, Position
from anabranch.model.inheritance import Piece
from anabranch.model.ranges import FULL
from anabranch.testing.faults import SimClock
from anabranch.testing.simdisk import Platter, SimDisk
from anabranch.testing.simloop import SimLoop
from anabranch.testing.simprocess import SimProcess

NAME = "segment://public/default/orders/0000-ffff-0"
OTHER = "persistent://public/default/orders"
DATA = b"0123456789"
LEDGER_ENTRIES = 4
LEDGER_BYTES = LEDGER_ENTRIES * (32 + len(DATA))


class StorageHost(Protocol):
    """A place at which one process after another opens the same storage."""

    def make(self) -> SegmentStorage: ...


class MemoryHost:
    def __init__(self) -> None:
        self._storage = MemoryStorage(ledger_entries_max=LEDGER_ENTRIES)

    def make(self) -> SegmentStorage:
        return self._storage


class FilesHost:
    def __init__(self, root: Path) -> None:
        self._root = root

    def make(self) -> SegmentStorage:
        return FileStorage(
            OsDisk(self._root),
            clock=SystemClock(),
            limits=StorageLimits(cache_bytes=500, ledger_bytes_max=LEDGER_BYTES),
        )


class SimHost:
    """Limits so small that every append rolls, flushes and checkpoints something."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._platter = Platter(loop)

    def make(self) -> SegmentStorage:
        return FileStorage(
            SimDisk(self._platter, SimProcess(self._loop, "storage")),
            clock=SimClock(self._loop),
            limits=StorageLimits(
                cache_bytes=0, journal_bytes_max=400, ledger_bytes_max=LEDGER_BYTES, behind_bytes=1
            ),
        )


class Run:
    """An open storage, and a way to close it and open it anew."""

    def __init__(self, host: StorageHost) -> None:
        self._host = host
        self.storage = host.make()

    async def reopen(self) -> SegmentStorage:
        await self.storage.close()
        self.storage = self._host.make()
        await self.storage.open()
        return self.storage


@pytest.fixture(
    params=["memory", pytest.param("files", marks=pytest.mark.real_time), "simulated disk"],
)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> StorageHost:
    if request.param == "memory":
        return MemoryHost()
    if request.param == "files":
        return FilesHost(tmp_path)
    return SimHost(request.getfixturevalue("loop"))


@pytest.fixture
async def run(host: StorageHost) -> AsyncIterator[Run]:
    run = Run(host)
    await run.storage.open()
    yield run
    await run.storage.close()


async def put(log: SegmentLog, *datas: bytes, count: int = 1, timestamp_ms: int = 1000) -> list[Entry]:
    """Append and wait until durable."""
    places: list[Entry] = []

    def done(place: Entry | None, error: BaseException | None) -> None:
        assert error is None
        assert place is not None
        places.append(place)

    for data in datas:
        log.append(data, count, timestamp_ms, done)
    await log.flush()
    assert len(places) == len(datas)
    return places


async def read_all(log: SegmentLog) -> list[Entry]:
    found: list[Entry] = []
    at = log.extent.first_ordinal
    while at < log.extent.next_ordinal:
        part = await log.read(at, 3, 1000)
        assert part[0].ordinal == at
        found += part
        at = found[-1].ordinal + 1
    return found


async def test_an_append_is_told_its_place(run: Run) -> None:
    log = await run.storage.create(NAME)
    first = await put(log, DATA, DATA, count=3, timestamp_ms=7)
    ledger = first[0].position.ledger
    assert first == [
        Entry(Position(ledger, 0), 0, 0, 3, 7, DATA),
        Entry(Position(ledger, 1), 1, 3, 3, 7, DATA),
    ]
    assert (log.extent.next_ordinal, log.extent.next_index, log.extent.last_timestamp_ms) == (2, 6, 7)
    assert log.extent.size_bytes == 2 * len(DATA)


async def test_callbacks_come_in_append_order(run: Run) -> None:
    log = await run.storage.create(NAME)
    told: list[int] = []
    for number in range(20):
        log.append(DATA, 1, 0, lambda place, error, number=number: told.append(number))  # type: ignore[misc]
        if number % 7 == 0:
            await asyncio.sleep(0)
    await log.flush()
    assert told == list(range(20))


async def test_nothing_is_visible_before_it_is_durable(run: Run) -> None:
    log = await run.storage.create(NAME)
    seen: list[int] = []
    log.append(DATA, 1, 0, lambda place, error: seen.append(log.extent.next_ordinal), "p", 5)
    assert log.extent.next_ordinal == 0
    assert log.read_cached(0, 10, 1000) == []
    assert list(await log.read(5, 10, 1000)) == []
    assert dict(log.sequences.own) == {}
    await log.flush()
    assert seen == [1]


async def test_what_was_stored_is_read_back_byte_for_byte(run: Run) -> None:
    log = await run.storage.create(NAME)
    datas = [bytes([number]) * number for number in range(30)]
    places = await put(log, *datas, count=2, timestamp_ms=11)
    for _ in range(2):
        assert await read_all(log) == [
            Entry(place.position, place.ordinal, place.index, 2, 11, data)
            for place, data in zip(places, datas, strict=True)
        ]
        storage = await run.reopen()
        found = storage.get(NAME)
        assert found is not None
        log = found


async def test_a_read_respects_both_limits_but_gives_at_least_one(run: Run) -> None:
    log = await run.storage.create(NAME)
    await put(log, DATA, DATA, DATA)
    assert len(await log.read(0, 2, 1000)) == 2
    assert len(await log.read(0, 10, 25)) in (1, 2)
    assert len(await log.read(1, 10, 1)) == 1
    assert len(await log.read(3, 10, 1000)) == 0


async def test_a_new_process_begins_a_new_ledger_and_counts_on(run: Run) -> None:
    log = await run.storage.create(NAME)
    (old,) = await put(log, DATA, count=5)
    reopened = (await run.reopen()).get(NAME)
    assert reopened is not None
    (new,) = await put(reopened, DATA)
    assert new.position.ledger > old.position.ledger
    assert (new.position.entry, new.ordinal, new.index) == (0, 1, 5)


async def test_ledger_ids_are_never_used_twice(run: Run) -> None:
    seen: list[int] = []
    for _ in range(3):
        for name in (NAME, OTHER):
            log = await run.storage.create(name)
            places = await put(log, *[DATA] * (LEDGER_ENTRIES + 1))
            seen += sorted({place.position.ledger for place in places})
        await run.storage.delete(OTHER)
        await run.reopen()
    assert seen == sorted(set(seen))
    assert len(seen) == 12


async def test_coordinates_of_the_same_entry_agree(run: Run) -> None:
    log = await run.storage.create(NAME)
    for at in range(3):
        await put(log, *[DATA] * 3, count=at + 1, timestamp_ms=1000 + at)
        reopened = (await run.reopen()).get(NAME)
        assert reopened is not None
        log = reopened
    for entry in await read_all(log):
        assert log.extent.position_of(entry.ordinal) == entry.position
        assert log.extent.ordinal_of(entry.position) == entry.ordinal
        assert log.extent.index_of(entry.ordinal) == entry.index
        for index in range(entry.index, entry.index + entry.count):
            assert log.extent.ordinal_of_index(index) == entry.ordinal


async def test_coordinates_at_the_ends(run: Run) -> None:
    log = await run.storage.create(NAME)
    assert log.extent.ordinal_of(log.extent.position_of(0)) == 0
    assert (log.extent.index_of(0), log.extent.ordinal_of_index(0), log.extent.ordinal_at_time(0)) == (
        0,
        0,
        0,
    )
    places = await put(log, *[DATA] * 6, count=2)
    last = places[-1].position
    assert log.extent.position_of(6) == Position(last.ledger, last.entry + 1)
    assert log.extent.ordinal_of(log.extent.position_of(6)) == 6
    assert log.extent.ordinal_of(EARLIEST) == 0
    assert log.extent.ordinal_of(LATEST) == 6
    assert log.extent.ordinal_of(Position(places[0].position.ledger, 1000)) == LEDGER_ENTRIES
    assert log.extent.ordinal_of(Position(places[0].position.ledger, -1)) == 0
    assert log.extent.index_of(6) == 12
    assert log.extent.ordinal_of_index(12) == 6


async def test_a_time_finds_the_first_entry_at_or_after_it(run: Run) -> None:
    log = await run.storage.create(NAME)
    stamps = [10, 20, 15, 5, 30, 25, 40]
    for stamp in stamps:
        await put(log, DATA, timestamp_ms=stamp)
    for _ in range(2):
        for asked in range(45):
            expected = next((at for at, stamp in enumerate(stamps) if stamp >= asked), len(stamps))
            assert log.extent.ordinal_at_time(asked) == expected, asked
        reopened = (await run.reopen()).get(NAME)
        assert reopened is not None
        log = reopened


async def test_a_sealed_log_takes_nothing_and_keeps_what_it_took(run: Run) -> None:
    log = await run.storage.create(NAME)
    told: list[int] = []
    log.append(DATA, 1, 0, lambda place, error: told.append(0 if place is None else place.ordinal))
    sealing = asyncio.ensure_future(log.seal())
    await asyncio.sleep(0)
    with pytest.raises(TopicTerminatedError):
        log.append(DATA, 1, 0, lambda place, error: None)
    await sealing
    assert told == [0]
    assert (log.sealed, log.extent.next_ordinal) == (True, 1)
    await log.seal()
    reopened = (await run.reopen()).get(NAME)
    assert reopened is not None
    assert (reopened.sealed, reopened.extent.next_ordinal) == (True, 1)
    with pytest.raises(TopicTerminatedError):
        reopened.append(DATA, 1, 0, lambda place, error: None)
    await reopened.seal()


async def test_watchers_are_called_once_a_commit_and_at_a_seal(run: Run) -> None:
    log = await run.storage.create(NAME)
    other = await run.storage.create(OTHER)
    seen: list[tuple[int, bool]] = []
    undo = log.watch(lambda: seen.append((log.extent.next_ordinal, log.sealed)))
    await put(log, DATA, DATA, DATA)
    await put(other, DATA)
    assert seen == [(3, False)]
    await put(log, DATA)
    assert seen == [(3, False), (4, False)]
    await log.seal()
    assert seen[2:] == [(4, True)]
    undo()
    undo()
    await log.seal()
    assert len(seen) == 3


async def test_acknowledgements_survive_exactly(run: Run) -> None:
    log = await run.storage.create(NAME)
    cursor = log.cursors.open("s", 0, {"colour": "red"})
    cursor.acknowledge_up_to(10)
    cursor.acknowledge([12, 13, 20])
    cursor.acknowledge_part(15, 0b0110, 4)
    await cursor.flush()
    cursor.acknowledge(range(30, 60, 2))
    cursor.acknowledge_part(15, 0b1010, 4)
    cursor.acknowledge_part(16, 0b0, 3)
    await cursor.flush()
    expected = cursor.acks.copy()
    assert expected.mark == 10
    assert expected.remaining(15) == 0b0010
    assert 16 in expected
    for _ in range(2):
        reopened = (await run.reopen()).get(NAME)
        assert reopened is not None
        again = reopened.cursors["s"]
        assert again.acks == expected
        assert dict(again.properties) == {"colour": "red"}


async def test_a_reset_forgets_and_what_follows_counts_again(run: Run) -> None:
    log = await run.storage.create(NAME)
    cursor = log.cursors.open("s", 0)
    cursor.acknowledge([5, 6, 7])
    await cursor.flush()
    cursor.acknowledge_up_to(50)
    cursor.reset(3)
    cursor.acknowledge([4])
    await cursor.flush()
    reopened = (await run.reopen()).get(NAME)
    assert reopened is not None
    acks = reopened.cursors["s"].acks
    assert (acks.mark, 4 in acks, 5 in acks) == (3, True, False)


async def test_a_cursor_is_opened_once_and_deleted_for_good(run: Run) -> None:
    log = await run.storage.create(NAME)
    cursor = log.cursors.open("s", 3)
    assert log.cursors.open("s", 9) is cursor
    assert cursor.acks.mark == 3
    cursor.acknowledge([7])
    await log.cursors.delete("s")
    await log.cursors.delete("unknown")
    assert list(log.cursors) == []
    again = log.cursors.open("s", 5)
    again.acknowledge([6])
    cursor.acknowledge([5])
    await log.flush()
    reopened = (await run.reopen()).get(NAME)
    assert reopened is not None
    acks = reopened.cursors["s"].acks
    assert (acks.mark, 6 in acks, 7 in acks) == (5, True, False)


async def test_sequences_become_durable_with_their_entries(run: Run) -> None:
    log = await run.storage.create(NAME)
    done = lambda place, error: None  # noqa: E731
    log.append(DATA, 1, 0, done, "a", 1)
    log.append(DATA, 1, 0, done, "b", 7)
    log.append(DATA, 1, 0, done, "a", 2)
    log.append(DATA, 1, 0, done)
    await log.flush()
    assert dict(log.sequences.own) == {"a": 2, "b": 7}
    reopened = (await run.reopen()).get(NAME)
    assert reopened is not None
    reopened.append(DATA, 1, 0, done, "a", 9)
    await reopened.flush()
    again = (await run.reopen()).get(NAME)
    assert again is not None
    assert dict(again.sequences.own) == {"a": 9, "b": 7}


async def test_what_is_inherited_is_durable_when_it_is_answered_and_replaces_the_former(run: Run) -> None:
    low, high = FULL.halves()
    first = (Piece(FULL, {"a": 1}),)
    second = (Piece(low, {"a": 5, "b": 2}), Piece(high, {}))
    log = await run.storage.create(NAME)
    assert not log.sequences.inherited
    await log.inherit(first)
    assert log.sequences.inherited == first
    await log.inherit(second)
    reopened = (await run.reopen()).get(NAME)
    assert reopened is not None
    assert reopened.sequences.inherited == second
    assert list(reopened.sequences.inherited[0].sequences) == ["a", "b"]
    assert dict(reopened.sequences.own) == {}
    await reopened.inherit(())
    again = (await run.reopen()).get(NAME)
    assert again is not None
    assert again.sequences.inherited == ()


async def test_what_is_inherited_shows_only_once_it_is_durable(run: Run) -> None:
    log = await run.storage.create(NAME)
    inheriting = asyncio.ensure_future(log.inherit((Piece(FULL, {"a": 1}),)))
    await put(log, DATA)
    await inheriting
    assert log.sequences.inherited == (Piece(FULL, {"a": 1}),)
    await run.storage.delete(NAME)
    with pytest.raises(TopicNotFoundError):
        await log.inherit(())


async def test_a_trim_drops_whole_ledgers_only(run: Run) -> None:
    log = await run.storage.create(NAME)
    places = await put(log, *[DATA] * 10, count=2)
    await log.trim(LEDGER_ENTRIES - 1)
    assert log.extent.first_ordinal == 0
    await log.trim(7)
    assert (log.extent.first_ordinal, log.extent.first_index) == (4, 8)
    await log.trim(0)
    for _ in range(2):
        assert (log.extent.first_ordinal, log.extent.first_index, log.extent.next_ordinal) == (4, 8, 10)
        assert log.extent.size_bytes == 6 * len(DATA)
        entries = await read_all(log)
        assert [entry.ordinal for entry in entries] == [4, 5, 6, 7, 8, 9]
        assert (await log.read(0, 1, 100))[0].ordinal == 4
        assert log.extent.ordinal_of(places[0].position) == 4
        assert log.extent.ordinal_of_index(3) == 4
        assert log.extent.position_of(4) == places[4].position
        reopened = (await run.reopen()).get(NAME)
        assert reopened is not None
        log = reopened


async def test_a_log_says_where_the_ledger_begins_from_which_on_so_much_is_stored(run: Run) -> None:
    log = await run.storage.create(NAME)
    assert log.extent.ordinal_keeping(0) == log.extent.ordinal_keeping(1) == 0
    await put(log, *[DATA] * 10)
    for _ in range(2):
        for entries, begins in ((0, 8), (2, 8), (3, 4), (6, 4), (7, 0), (10, 0), (11, 0)):
            assert log.extent.ordinal_keeping(entries * len(DATA)) == begins, entries
        assert log.extent.ordinal_keeping(2 * len(DATA) + 1) == 4
        reopened = (await run.reopen()).get(NAME)
        assert reopened is not None
        log = reopened
    await log.trim(log.extent.ordinal_keeping(6 * len(DATA)))
    assert (log.extent.first_ordinal, log.extent.size_bytes) == (4, 6 * len(DATA))
    assert log.extent.ordinal_keeping(100 * len(DATA)) == 4


async def test_a_log_that_is_trimmed_to_its_end_keeps_counting(run: Run) -> None:
    log = await run.storage.create(NAME)
    places = await put(log, *[DATA] * 5, count=3)
    await log.trim(5)
    assert log.extent.first_ordinal == 4
    reopened = (await run.reopen()).get(NAME)
    assert reopened is not None
    await reopened.trim(5)
    again = (await run.reopen()).get(NAME)
    assert again is not None
    assert (
        again.extent.first_ordinal,
        again.extent.next_ordinal,
        again.extent.first_index,
        again.extent.next_index,
    ) == (5, 5, 15, 15)
    assert list(await again.read(0, 10, 1000)) == []
    assert again.extent.position_of(5) == Position(places[-1].position.ledger, places[-1].position.entry + 1)
    (place,) = await put(again, DATA)
    assert (place.ordinal, place.index) == (5, 15)
    assert place.position.ledger > places[-1].position.ledger


async def test_logs_are_created_once_and_listed_in_order(run: Run) -> None:
    log = await run.storage.create(NAME)
    assert await run.storage.create(NAME) is log
    await run.storage.create(OTHER)
    assert list(run.storage.names()) == sorted([NAME, OTHER])
    storage = await run.reopen()
    assert list(storage.names()) == sorted([NAME, OTHER])
    assert storage.get("persistent://public/default/unknown") is None
    with pytest.raises(InvalidNameError):
        await storage.create("persistent://../..//x")


async def test_a_deleted_log_is_gone_and_its_name_begins_anew(run: Run) -> None:
    log = await run.storage.create(NAME)
    other = await run.storage.create(OTHER)
    (old,) = await put(log, DATA)
    await put(other, b"stays")
    cursor = log.cursors.open("s", 0)
    await run.storage.delete(NAME)
    await run.storage.delete("persistent://public/default/unknown")
    cursor.acknowledge([0])
    with pytest.raises(TopicNotFoundError):
        log.append(DATA, 1, 0, lambda place, error: None)
    assert list(await log.read(0, 10, 1000)) == []
    assert list(run.storage.names()) == [OTHER]
    again = await run.storage.create(NAME)
    assert (again.extent.next_ordinal, dict(again.cursors)) == (0, {})
    (new,) = await put(again, b"new")
    assert new.position.ledger > old.position.ledger
    storage = await run.reopen()
    for name, data in ((NAME, b"new"), (OTHER, b"stays")):
        found = storage.get(name)
        assert found is not None
        assert [entry.data for entry in await read_all(found)] == [data]


async def test_a_closed_storage_refuses(run: Run) -> None:
    log = await run.storage.create(NAME)
    await put(log, DATA)
    await run.storage.close()
    await run.storage.close()
    with pytest.raises(AlreadyClosedError):
        log.append(DATA, 1, 0, lambda place, error: None)
    with pytest.raises(AlreadyClosedError):
        await run.storage.create(OTHER)


async def test_what_is_queued_at_close_is_stored(run: Run) -> None:
    log = await run.storage.create(NAME)
    cursor = log.cursors.open("s", 0)
    told: list[object] = []
    log.append(DATA, 1, 0, lambda place, error: told.append(place))
    cursor.acknowledge([0])
    reopened = (await run.reopen()).get(NAME)
    assert len(told) == 1
    assert reopened is not None
    assert reopened.extent.next_ordinal == 1
    assert reopened.cursors["s"].acks.mark == 1


async def test_an_entry_holds_at_least_one_message(run: Run) -> None:
    log = await run.storage.create(NAME)
    with pytest.raises(ValueError, match="not 0"):
        log.append(DATA, 0, 0, lambda place, error: None)
    await put(log, DATA)
    assert log.extent.next_index == 1


async def test_claimed_message_counts_and_clocks_may_be_absurd(run: Run) -> None:
    log = await run.storage.create(NAME)
    places = []
    for count, stamp in ((2**31, 0), (2**31, -5), (2**32 - 1, 2**50), (1, 3)):
        places += await put(log, DATA, count=count, timestamp_ms=stamp)
    entries = await read_all(log)
    assert [entry.index for entry in entries] == [0, 2**31, 2**32, 2**33 - 1]
    assert [entry.timestamp_ms for entry in entries] == [0, -5, 2**50, 3]
    assert log.extent.ordinal_at_time(1) == 2
