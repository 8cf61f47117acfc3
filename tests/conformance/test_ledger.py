"""One suite for the ledger port, run on every adapter and, for the files, on every disk."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.errors import TopicTerminatedError
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.ids import EARLIEST, LATEST, Position
from tests.conformance.ledger_hosts import DATA, LEDGER_ENTRIES, NAME, OTHER, Run, put, read_all


async def test_an_append_is_told_its_place(log: SegmentLog) -> None:
    first = await put(log, DATA, DATA, count=3, timestamp_ms=7)
    ledger = first[0].position.ledger
    assert first == [
        Entry(Position(ledger, 0), 0, 0, 3, 7, DATA),
        Entry(Position(ledger, 1), 1, 3, 3, 7, DATA),
    ]
    assert (log.extent.next_ordinal, log.extent.next_index, log.extent.last_timestamp_ms) == (2, 6, 7)
    assert log.extent.size_bytes == 2 * len(DATA)


async def test_callbacks_come_in_append_order(log: SegmentLog) -> None:
    told: list[int] = []
    for number in range(20):
        log.append(DATA, 1, 0, lambda place, error, number=number: told.append(number))  # type: ignore[misc]
        if number % 7 == 0:
            await asyncio.sleep(0)
    await log.flush()
    assert told == list(range(20))


async def test_nothing_is_visible_before_it_is_durable(log: SegmentLog) -> None:
    seen: list[int] = []
    log.append(DATA, 1, 0, lambda place, error: seen.append(log.extent.next_ordinal), "p", 5)
    assert log.extent.next_ordinal == 0
    assert log.read_cached(0, 10, 1000) == []
    assert list(await log.read(5, 10, 1000)) == []
    assert dict(log.sequences.own) == {}
    await log.flush()
    assert seen == [1]


async def test_stored_entries_are_read_back_byte_for_byte(run: Run, log: SegmentLog) -> None:
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


async def test_a_read_respects_both_limits_but_gives_at_least_one(log: SegmentLog) -> None:
    await put(log, DATA, DATA, DATA)
    assert len(await log.read(0, 2, 1000)) == 2
    assert len(await log.read(0, 10, 25)) in (1, 2)
    assert len(await log.read(1, 10, 1)) == 1
    assert len(await log.read(3, 10, 1000)) == 0


async def test_chosen_entries_are_read_alone(run: Run, log: SegmentLog) -> None:
    places = await put(log, *[b"%d" % number for number in range(20)], count=2, timestamp_ms=11)
    chosen = [0, 3, 4, 5, 11, 19]
    for _ in range(2):
        assert list(await log.read_each(chosen, 1000)) == [places[ordinal] for ordinal in chosen]
        assert list(await log.read_each([], 1000)) == []
        assert list(await log.read_each([7, 20, 25], 1000)) == [places[7]]
        assert list(await log.read_each([20, 25], 1000)) == []
        cached = log.read_each_cached(chosen, 1000)
        assert cached is None or list(cached) == [places[at] for at in chosen[: len(cached)]]
        assert list(log.read_each_cached([20], 1000) or ()) == []
        reopened = await run.reopened_log()
        log = reopened


async def test_chosen_entries_come_within_the_size_but_at_least_one(run: Run, log: SegmentLog) -> None:
    await put(log, *[DATA] * 9)
    for _ in range(2):
        assert [entry.ordinal for entry in await log.read_each([2, 6, 8], 1)] == [2]
        ordinals = [entry.ordinal for entry in await log.read_each([2, 6, 8], 2 * len(DATA))]
        assert ordinals in ([2], [2, 6])
        assert [entry.ordinal for entry in await log.read_each([2, 6, 8], 1000)] == [2, 6, 8]
        reopened = await run.reopened_log()
        log = reopened


async def test_trimmed_entries_are_left_out_of_chosen_ones(log: SegmentLog) -> None:
    await put(log, *[DATA] * 10)
    await log.trim(7)
    assert log.extent.first_ordinal == 4
    assert [entry.ordinal for entry in await log.read_each([0, 3, 4, 9], 1000)] == [4, 9]
    assert list(await log.read_each([0, 3], 1000)) == []
    assert list(log.read_each_cached([0, 3], 1000) or ()) == []


async def test_a_new_process_begins_a_new_ledger_and_counts_on(run: Run, log: SegmentLog) -> None:
    (old,) = await put(log, DATA, count=5)
    reopened = await run.reopened_log()
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


async def test_a_log_that_is_created_again_gets_another_id(run: Run) -> None:
    seen = [(await run.storage.create(NAME)).id, (await run.storage.create(OTHER)).id]
    for _ in range(2):
        await run.reopen()
        assert (await run.storage.create(NAME)).id == seen[0], "an id outlives a restart"
        await run.storage.delete(OTHER)
        seen.append((await run.storage.create(OTHER)).id)
    assert len(set(seen)) == len(seen)


async def test_coordinates_of_the_same_entry_agree(run: Run, log: SegmentLog) -> None:
    for at in range(3):
        await put(log, *[DATA] * 3, count=at + 1, timestamp_ms=1000 + at)
        reopened = await run.reopened_log()
        log = reopened
    for entry in await read_all(log):
        assert log.extent.position_of(entry.ordinal) == entry.position
        assert log.extent.ordinal_of(entry.position) == entry.ordinal
        assert log.extent.index_of(entry.ordinal) == entry.index
        for index in range(entry.index, entry.index + entry.count):
            assert log.extent.ordinal_of_index(index) == entry.ordinal


async def test_coordinates_at_the_ends(log: SegmentLog) -> None:
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


async def test_a_time_finds_the_first_entry_at_or_after_it(run: Run, log: SegmentLog) -> None:
    stamps = [10, 20, 15, 5, 30, 25, 40]
    for stamp in stamps:
        await put(log, DATA, timestamp_ms=stamp)
    for _ in range(2):
        for asked in range(45):
            expected = next((at for at, stamp in enumerate(stamps) if stamp >= asked), len(stamps))
            assert log.extent.ordinal_at_time(asked) == expected, asked
        assert [log.extent.time_of(at) for at in range(8)] == [10, 20, 20, 20, 30, 30, 40, None]
        reopened = await run.reopened_log()
        log = reopened


async def test_a_sealed_log_takes_nothing_and_keeps_what_it_took(run: Run, log: SegmentLog) -> None:
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
    reopened = await run.reopened_log()
    assert (reopened.sealed, reopened.extent.next_ordinal) == (True, 1)
    with pytest.raises(TopicTerminatedError):
        reopened.append(DATA, 1, 0, lambda place, error: None)
    await reopened.seal()


async def test_watchers_are_called_once_a_commit_and_at_a_seal(run: Run, log: SegmentLog) -> None:
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
