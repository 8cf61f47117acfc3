"""The ledger suite, continued: cursors, sequence ids, trims, and the logs of a storage."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.errors import AlreadyClosedError, InvalidNameError, TopicNotFoundError
from anabranch.ledger.storage import SegmentLog
from anabranch.model.acks import AckSet
from anabranch.model.ids import Position
from anabranch.model.inheritance import Piece
from anabranch.model.log_names.side_logs import side_log_name
from anabranch.model.names import TopicName
from anabranch.model.ranges import FULL
from tests.conformance.ledger_hosts import DATA, LEDGER_ENTRIES, NAME, OTHER, Run, put, read_all


async def test_acknowledgements_survive_exactly(run: Run, log: SegmentLog) -> None:
    cursor = log.cursors.open("s", 0, {"colour": "red"})
    cursor.acknowledge_up_to(10)
    cursor.acknowledge([12, 13, 20])
    cursor.acknowledge_part(15, 0b0110, 4)
    await cursor.flush()
    cursor.acknowledge(range(30, 60, 2))
    cursor.acknowledge_part(15, 0b1010, 4)
    cursor.acknowledge_part(16, 0b0, 3)
    await cursor.flush()
    expected = AckSet.decode(cursor.acks.encode())
    assert expected.mark == 10
    assert expected.remaining(15) == 0b0010
    assert 16 in expected
    for _ in range(2):
        reopened = await run.reopened_log()
        again = reopened.cursors["s"]
        assert again.acks == expected
        assert dict(again.properties) == {"colour": "red"}


async def test_a_reset_forgets_and_what_follows_counts_again(run: Run, log: SegmentLog) -> None:
    cursor = log.cursors.open("s", 0)
    cursor.acknowledge([5, 6, 7])
    await cursor.flush()
    cursor.acknowledge_up_to(50)
    cursor.reset(3)
    cursor.acknowledge([4])
    await cursor.flush()
    reopened = await run.reopened_log()
    acks = reopened.cursors["s"].acks
    assert (acks.mark, 4 in acks, 5 in acks) == (3, True, False)


async def test_a_note_survives_until_the_next_one_or_a_reset(run: Run, log: SegmentLog) -> None:
    cursor = log.cursors.open("s", 0)
    assert cursor.note == b""
    cursor.acknowledge([5])
    cursor.set_note(b"first")
    await cursor.flush()
    cursor.set_note(b"second")
    await cursor.flush()
    for _ in range(2):
        cursor = (await run.reopened_log()).cursors["s"]
        assert (cursor.note, 5 in cursor.acks) == (b"second", True)
    cursor.reset(3)
    await cursor.flush()
    cursor = (await run.reopened_log()).cursors["s"]
    assert cursor.note == b""
    cursor.set_note(b"third")
    await cursor.flush()
    assert (await run.reopened_log()).cursors["s"].note == b"third"


async def test_properties_of_a_cursor_are_replaced_and_survive_a_seek(run: Run, log: SegmentLog) -> None:
    cursor = log.cursors.open("s", 0, {"colour": "red"})
    await cursor.flush()
    cursor.set_properties({"size": "2"})
    cursor.reset(3)
    await cursor.flush()
    for _ in range(2):
        cursor = (await run.reopened_log()).cursors["s"]
        assert (dict(cursor.properties), cursor.acks.mark) == ({"size": "2"}, 3)


async def test_a_note_of_a_deleted_cursor_is_gone(run: Run, log: SegmentLog) -> None:
    log.cursors.open("s", 0).set_note(b"old")
    await log.flush()
    await log.cursors.delete("s")
    log.cursors.open("s", 0)
    await log.flush()
    assert (await run.reopened_log()).cursors["s"].note == b""


async def test_a_cursor_is_opened_once_and_deleted_for_good(run: Run, log: SegmentLog) -> None:
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
    reopened = await run.reopened_log()
    acks = reopened.cursors["s"].acks
    assert (acks.mark, 6 in acks, 7 in acks) == (5, True, False)


async def test_sequences_become_durable_with_their_entries(run: Run, log: SegmentLog) -> None:
    done = lambda place, error: None  # noqa: E731
    log.append(DATA, 1, 0, done, "a", 1)
    log.append(DATA, 1, 0, done, "b", 7)
    log.append(DATA, 1, 0, done, "a", 2)
    log.append(DATA, 1, 0, done)
    await log.flush()
    assert dict(log.sequences.own) == {"a": 2, "b": 7}
    reopened = await run.reopened_log()
    reopened.append(DATA, 1, 0, done, "a", 9)
    await reopened.flush()
    again = await run.reopened_log()
    assert dict(again.sequences.own) == {"a": 9, "b": 7}


async def test_an_answered_inheritance_is_durable_and_replaces_the_former(run: Run) -> None:
    low, high = FULL.halves()
    first = (Piece(FULL, {"a": 1}),)
    second = (Piece(low, {"a": 5, "b": 2}), Piece(high, {}))
    log = await run.storage.create(NAME)
    assert not log.sequences.inherited
    await log.inherit(first)
    assert log.sequences.inherited == first
    await log.inherit(second)
    reopened = await run.reopened_log()
    assert reopened.sequences.inherited == second
    assert list(reopened.sequences.inherited[0].sequences) == ["a", "b"]
    assert dict(reopened.sequences.own) == {}
    await reopened.inherit(())
    again = await run.reopened_log()
    assert again.sequences.inherited == ()


async def test_an_inheritance_shows_only_once_it_is_durable(run: Run, log: SegmentLog) -> None:
    inheriting = asyncio.ensure_future(log.inherit((Piece(FULL, {"a": 1}),)))
    await put(log, DATA)
    await inheriting
    assert log.sequences.inherited == (Piece(FULL, {"a": 1}),)
    await run.storage.delete(NAME)
    with pytest.raises(TopicNotFoundError):
        await log.inherit(())


async def test_a_trim_drops_whole_ledgers_only(run: Run, log: SegmentLog) -> None:
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
        reopened = await run.reopened_log()
        log = reopened


async def test_a_log_says_where_the_ledger_begins_from_which_on_so_much_is_stored(
    run: Run, log: SegmentLog
) -> None:
    assert log.extent.ordinal_keeping(0) == log.extent.ordinal_keeping(1) == 0
    await put(log, *[DATA] * 10)
    for _ in range(2):
        for entries, begins in ((0, 8), (2, 8), (3, 4), (6, 4), (7, 0), (10, 0), (11, 0)):
            assert log.extent.ordinal_keeping(entries * len(DATA)) == begins, entries
        assert log.extent.ordinal_keeping(2 * len(DATA) + 1) == 4
        reopened = await run.reopened_log()
        log = reopened
    await log.trim(log.extent.ordinal_keeping(6 * len(DATA)))
    assert (log.extent.first_ordinal, log.extent.size_bytes) == (4, 6 * len(DATA))
    assert log.extent.ordinal_keeping(100 * len(DATA)) == 4


async def test_a_log_tells_the_bytes_and_the_indexes_of_a_part_of_it(run: Run, log: SegmentLog) -> None:
    await put(log, *[DATA] * 10, count=3)
    await log.trim(4)
    for _ in range(2):
        assert list(log.extent.indexes_after(0, 100)) == [15, 18, 21, 24, 27, 30]
        assert list(log.extent.indexes_after(5, 9)) == [18, 21, 24, 27]
        assert list(log.extent.indexes_after(9, 9)) == list(log.extent.indexes_after(0, 4)) == []
        whole, half = log.extent.bytes_between(0, 100), log.extent.bytes_between(5, 8)
        assert whole >= 6 * len(DATA)
        assert half == whole // 2
        assert log.extent.bytes_between(8, 5) == log.extent.bytes_between(0, 3) == 0
        reopened = await run.reopened_log()
        log = reopened


async def test_side_logs_are_stored_like_others_but_listed_apart(run: Run, log: SegmentLog) -> None:
    side = side_log_name(TopicName.parse(NAME), "s", 7)
    await put(await run.storage.create(side), b"spilled")
    for _ in range(2):
        assert (list(run.storage.names()), list(run.storage.side_names())) == ([NAME], [side])
        found = run.storage.get(side)
        assert found is not None
        assert [entry.data for entry in await read_all(found)] == [b"spilled"]
        await run.reopen()
    await run.storage.delete(side)
    assert list((await run.reopen()).side_names()) == []
    with pytest.raises(InvalidNameError):
        await run.storage.create("spill://public/default/..")


async def test_a_log_that_is_trimmed_to_its_end_keeps_counting(run: Run, log: SegmentLog) -> None:
    places = await put(log, *[DATA] * 5, count=3)
    await log.trim(5)
    assert log.extent.first_ordinal == 4
    reopened = await run.reopened_log()
    await reopened.trim(5)
    again = await run.reopened_log()
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


async def test_logs_are_created_once_and_listed_in_order(run: Run, log: SegmentLog) -> None:
    assert await run.storage.create(NAME) is log
    await run.storage.create(OTHER)
    assert list(run.storage.names()) == sorted([NAME, OTHER])
    storage = await run.reopen()
    assert list(storage.names()) == sorted([NAME, OTHER])
    assert storage.get("persistent://public/default/unknown") is None
    with pytest.raises(InvalidNameError):
        await storage.create("persistent://../..//x")


async def test_a_deleted_log_is_gone_and_its_name_begins_anew(run: Run, log: SegmentLog) -> None:
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


async def test_a_closed_storage_refuses(run: Run, log: SegmentLog) -> None:
    await put(log, DATA)
    await run.storage.close()
    await run.storage.close()
    with pytest.raises(AlreadyClosedError):
        log.append(DATA, 1, 0, lambda place, error: None)
    with pytest.raises(AlreadyClosedError):
        await run.storage.create(OTHER)


async def test_entries_queued_at_close_are_stored(run: Run, log: SegmentLog) -> None:
    cursor = log.cursors.open("s", 0)
    told: list[object] = []
    log.append(DATA, 1, 0, lambda place, error: told.append(place))
    cursor.acknowledge([0])
    reopened = (await run.reopen()).get(NAME)
    assert len(told) == 1
    assert reopened is not None
    assert reopened.extent.next_ordinal == 1
    assert reopened.cursors["s"].acks.mark == 1


async def test_an_entry_holds_at_least_one_message(log: SegmentLog) -> None:
    with pytest.raises(ValueError, match="not 0"):
        log.append(DATA, 0, 0, lambda place, error: None)
    await put(log, DATA)
    assert log.extent.next_index == 1


async def test_claimed_message_counts_and_clocks_may_be_absurd(log: SegmentLog) -> None:
    places = []
    for count, stamp in ((2**31, 0), (2**31, -5), (2**32 - 1, 2**50), (1, 3)):
        places += await put(log, DATA, count=count, timestamp_ms=stamp)
    entries = await read_all(log)
    assert [entry.index for entry in entries] == [0, 2**31, 2**32, 2**33 - 1]
    assert [entry.timestamp_ms for entry in entries] == [0, -5, 2**50, 3]
    assert log.extent.ordinal_at_time(1) == 2
