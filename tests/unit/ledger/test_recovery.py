"""Recovery finds all that a killed process confirmed, and no more."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.errors import PersistenceError
from anabranch.ledger.storage import SegmentLog
from tests.fakes.disk import DictDisk
from tests.harness.storage import (
    JOURNAL,
    NAME,
    OTHER,
    Outcomes,
    contents,
    crashed,
    entries,
    make,
    opened,
    put,
    three_commits,
)


async def recovered(disk: DictDisk) -> list[bytes]:
    async with opened(DictDisk(disk.files)) as storage:
        log = storage.get(NAME)
        assert log is not None
        return await contents(log)


async def test_a_killed_process_loses_nothing_that_was_confirmed() -> None:
    disk, _ = await three_commits()
    assert await recovered(disk) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]


async def test_a_journal_torn_at_any_byte_keeps_the_whole_commits_before() -> None:
    disk, ends = await three_commits()
    whole = disk.files[JOURNAL]
    for length in range(ends[0], ends[2]):
        disk.files[JOURNAL] = whole[:length]
        kept = 2 if length < ends[1] else 4
        assert len(await recovered(disk)) == kept, length


@pytest.mark.parametrize(
    "tail", [b"\0", bytes(5000), b"garbage" * 100, b"aBc\xa5" * 50], ids=["zero", "zeros", "text", "magic"]
)
async def test_garbage_behind_the_last_commit_is_dropped(tail: bytes) -> None:
    disk, _ = await three_commits()
    disk.files[JOURNAL] += tail
    assert len(await recovered(disk)) == 6


async def test_a_copy_of_an_older_commit_behind_the_last_one_is_dropped() -> None:
    disk, ends = await three_commits()
    journal = disk.files[JOURNAL]
    disk.files[JOURNAL] = journal + journal[ends[0] : ends[1]]
    assert len(await recovered(disk)) == 6


async def test_blocks_missing_inside_the_last_commit_are_a_torn_tail() -> None:
    disk, ends = await three_commits()
    journal = disk.files[JOURNAL]
    middle = (ends[1] + ends[2]) // 2
    disk.files[JOURNAL] = journal[: ends[1]] + bytes(middle - ends[1]) + journal[middle:]
    assert len(await recovered(disk)) == 4


async def test_a_torn_tail_is_gone_before_new_commits_follow() -> None:
    disk, ends = await three_commits()
    disk.files[JOURNAL] = disk.files[JOURNAL][:-1]
    for number in range(3):
        storage = make(disk)
        await storage.open()
        log = storage.get(NAME)
        assert log is not None
        await put(log, b"later %d" % number)
        disk = await crashed(disk, storage)
    assert len(disk.files[JOURNAL]) == ends[1]
    assert (await recovered(disk))[4:] == [b"later 0", b"later 1", b"later 2"]


async def test_a_journal_of_another_directory_is_not_taken_for_ours() -> None:
    disk, _ = await three_commits()
    storage = make(stranger := DictDisk(), now_ms=5)
    await storage.open()
    stranger = await crashed(stranger, storage)
    stranger.files[JOURNAL] = disk.files[JOURNAL]
    async with opened(stranger) as again:
        assert list(again.names()) == []


async def test_ledger_files_are_believed_only_as_far_as_the_catalog_vouches_for_them() -> None:
    disk = DictDisk()
    storage = make(disk, behind_bytes=1)
    await storage.open()
    log = await storage.create(NAME)
    await put(log, b"old")
    disk = await crashed(disk, storage)
    storage = make(disk, behind_bytes=1)
    await storage.open()
    log = await storage.create(NAME)
    expected = [b"old", b"one", b"two"]
    await put(log, b"one")
    await put(log, b"two")
    disk = await crashed(disk, storage)
    for file in [file for file in disk.files if file.startswith("ledgers/")]:
        whole = disk.files[file]
        for wrong in (b"", whole[:-1], whole + b"more", bytes(len(whole))):
            disk.files[file] = wrong
            if file.endswith("00000001.data") and wrong != whole + b"more":
                continue
            assert await recovered(disk) == expected, (file, wrong)
        disk.files[file] = whole


async def test_a_checkpoint_replaces_the_journal() -> None:
    disk = DictDisk()
    async with opened(disk, journal_bytes_max=2000) as storage:
        log = await storage.create(NAME)
        cursor = log.cursors.open("s", 0)
        for number in range(100):
            await put(log, b"%d" % number + bytes(50))
            cursor.acknowledge([number * 2])
        await log.flush()
        kept = [file for file in disk.files if file.startswith("journal/")]
        assert len(kept) <= 3
        assert "journal/00000001.log" not in kept
        left = DictDisk(disk.files)
    async with opened(left) as again:
        log = await again.create(NAME)
        assert await contents(log) == [b"%d" % number + bytes(50) for number in range(100)]
        assert log.cursors["s"].acks == cursor.acks


async def test_after_a_checkpoint_there_is_little_to_replay_though_the_storage_goes_on() -> None:
    disk = DictDisk()
    storage = make(disk)
    await storage.open()
    log = await storage.create(NAME)
    for number in range(10):
        await put(log, b"%d" % number + bytes(50))
    log.append(b"in flight", 1, 1000, Outcomes())
    await asyncio.sleep(0)
    await storage.checkpoint()
    await storage.checkpoint()
    await put(log, b"later")
    await storage.close(hastily=True)
    journals = [file for file in disk.files if file.startswith("journal/")]
    assert sum(len(disk.files[file]) for file in journals) < 300
    assert await recovered(disk) == [b"%d" % n + bytes(50) for n in range(10)] + [b"in flight", b"later"]


async def test_a_checkpoint_ends_when_the_disk_fails() -> None:
    disk = DictDisk()
    storage = make(disk)
    await storage.open()
    await put(await storage.create(NAME), b"x")
    failures: list[PersistenceError] = []
    storage.watch_failure(failures.append)
    disk.fault = lambda call, file: OSError("no room")
    async with asyncio.timeout(5):
        await storage.checkpoint()
    assert len(failures) == 1


async def test_a_clean_close_leaves_no_journal() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        await put(await storage.create(NAME), b"x")
    assert [file for file in disk.files if file.startswith("journal/")] == []
    before = dict(disk.files)
    async with opened(disk):
        pass
    assert disk.files == before
    assert await recovered(disk) == [b"x"]


async def test_unknown_storage_files_are_removed_and_foreign_files_stay() -> None:
    disk, _ = await three_commits()
    disk.files["ledgers/gone/00000009.data"] = b"orphan"
    disk.files["metadata.db"] = b"not ours"
    async with opened(disk):
        pass
    assert "ledgers/gone/00000009.data" not in disk.files
    assert disk.files["metadata.db"] == b"not ours"


async def test_files_that_the_journal_fills_again_are_emptied_and_not_deleted() -> None:
    disk = DictDisk()
    storage = make(disk, behind_bytes=1)
    await storage.open()
    await put(await storage.create(NAME), b"a", b"b")
    for _ in range(10):
        await asyncio.sleep(0)
    disk = await crashed(disk, storage)
    written = {file: data for file, data in disk.files.items() if file.startswith("ledgers/")}
    assert len(written) == 2, "its files are newer than the catalog"
    async with opened(disk) as storage:
        log = storage.get(NAME)
        assert log is not None
        assert await contents(log) == [b"a", b"b"]
    assert {file: disk.files[file] for file in written} == written
    assert written.keys().isdisjoint(file for call, files in disk.calls if call == "delete" for file in files)


async def test_a_start_does_not_wait_for_the_ledger_files_of_the_journal() -> None:
    disk, _ = await three_commits()
    storage = make(disk)
    await storage.open()
    assert not disk.count("append")
    log = storage.get(NAME)
    assert log is not None
    assert await contents(log) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    await asyncio.sleep(1)
    assert disk.count("append") == 1, "they follow in the background"
    await storage.close()
    assert await recovered(disk) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]


async def test_a_stop_with_thousands_of_unwritten_ledgers_leaves_them_to_the_journal() -> None:
    disk = DictDisk()
    names = [f"persistent://public/default/t{number}" for number in range(2100)]
    async with opened(disk) as storage:
        logs = await asyncio.gather(*(storage.create(name) for name in names))
        await asyncio.gather(*(put(log, b"x") for log in logs))
    assert not [file for file in disk.files if file.startswith("ledgers/")]
    async with opened(disk) as storage:
        assert len(storage.names()) == len(names)
        last = storage.get(names[-1])
        assert last is not None
        assert await contents(last) == [b"x"]
        await storage.checkpoint()
    assert len([file for file in disk.files if file.endswith(".data")]) == len(names)


async def test_trims_and_deletions_are_finished_by_the_next_process() -> None:
    disk = DictDisk()
    storage = make(disk, behind_bytes=1, ledger_bytes_max=1)
    await storage.open()
    log, other = await storage.create(NAME), await storage.create(OTHER)
    for target in (log, other):
        await put(target, b"0", b"1", b"2")
    await storage.close()
    storage = make(disk, behind_bytes=1, ledger_bytes_max=1)
    await storage.open()
    full = dict(disk.files)
    trimmed = storage.get(NAME)
    assert trimmed is not None
    await trimmed.trim(2)
    await storage.delete(OTHER)
    disk = await crashed(disk, storage)
    # As if the process had died after the commit and before its files went.
    disk.files = {**full, **disk.files}
    async with opened(DictDisk(disk.files)) as again:
        found = again.get(NAME)
        assert found is not None
        assert (found.extent.first_ordinal, await contents(found)) == (2, [b"2"])
        assert list(again.names()) == [NAME]
    left = DictDisk(disk.files)
    async with opened(left):
        pass
    assert sorted(file for file in left.files if file.startswith("ledgers/")) == sorted(
        f"ledgers/segment~public~default~orders~0000-ffff-0/00000003.{kind}" for kind in ("data", "index")
    )


async def test_recovery_may_be_interrupted_and_begun_again() -> None:
    disk, _ = await three_commits()
    calls = 0

    class Dying(DictDisk):
        async def _begin(self, call: str, *files: str) -> None:
            nonlocal calls
            calls += 1
            if calls == self.dies_at:
                raise OSError("died")
            await super()._begin(call, *files)

        dies_at = 0

    for dies_at in range(1, 15):
        dying = Dying(disk.files)
        dying.dies_at, calls = dies_at, 0
        storage = make(dying)
        try:
            await storage.open()
        except OSError:
            assert await recovered(DictDisk(dying.files)) == await recovered(disk)
        else:
            dying.dies_at = 0
            await storage.close()
    assert calls < 30


async def test_a_log_remembers_many_producers_but_not_all() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log: SegmentLog = await storage.create(NAME)
        log.append(b"x", 1, 0, Outcomes(), "old", 1)
        for number in range(10_000):
            if number == 9_000:
                await log.flush()
                log.append(b"x", 1, 0, Outcomes(), "old", 2)
            log.append(b"x", 1, 0, Outcomes(), f"p{number}", number)
        await log.flush()
        known = log.sequences.own
        assert len(known) == 10_000
        assert known["old"] == 2
        assert "p0" not in known


async def test_positions_stay_the_same_through_crashes() -> None:
    disk = DictDisk()
    told = []
    for number in range(4):
        storage = make(disk, behind_bytes=1 + 100 * (number % 2), journal_bytes_max=300)
        await storage.open()
        log = await storage.create(NAME)
        for _ in range(4):
            told += await put(log, b"x" * 20)
        disk = await crashed(disk, storage)
    async with opened(disk) as storage:
        found = await entries(await storage.create(NAME))
        assert [(entry.position, entry.ordinal, entry.index) for entry in found] == [
            (place.position, place.ordinal, place.index) for place in told
        ]


async def test_bytes_of_a_dead_process_are_synced_before_they_are_read() -> None:
    disk, _ = await three_commits()
    async with opened(disk):
        assert ("sync", (JOURNAL,)) in disk.calls
        assert disk.calls.index(("sync", ("catalog",))) < disk.calls.index(("read", ("catalog",)))


async def test_ledger_files_are_synced_before_the_catalog_vouches_for_them() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        await put(await storage.create(NAME), b"x")
        start = len(disk.calls)
    names = [call for call, _ in disk.calls[start:]]
    assert names == ["append", "sync", *["replace"] * 2, "delete", *["replace"] * 2]
    assert set(disk.calls[start][1]) == set(disk.calls[start + 1][1])
    assert [files for _, files in disk.calls[start + 2 : start + 4]] == [("catalog",), ("catalog.copy",)]


async def test_entries_of_a_deleted_log_are_not_written_any_more() -> None:
    disk = DictDisk()
    async with opened(disk, ledger_bytes_max=1) as storage:
        log, other = await storage.create(NAME), await storage.create(OTHER)
        await put(log, b"x")
        await put(other, b"0", b"1")
        await storage.delete(NAME)
        await other.trim(1)
    assert sorted(file for file in disk.files if file.startswith("ledgers/")) == [
        "ledgers/persistent~public~default~other/00000003.data",
        "ledgers/persistent~public~default~other/00000003.index",
    ]
