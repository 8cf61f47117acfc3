"""One sync confirms all waiting appends, and after a failed sync the storage refuses all appends."""

from __future__ import annotations

import asyncio
import errno

import pytest

from anabranch.broker.catalog.stores import Stores
from anabranch.clock import Clock
from anabranch.errors import AlreadyClosedError, PersistenceError
from anabranch.ledger.file_storage import FileStorage
from anabranch.timings import Timings
from simulation.world.disk import SimDisk
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.platter import Platter
from simulation.world.process import SimProcess
from tests.fakes.disk import DictDisk
from tests.harness.storage import NAME, OTHER, FixedClock, Outcomes, contents, crashed, make, opened, put


async def test_all_logs_share_one_sync() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        logs = [await storage.create(f"persistent://public/default/t{n}") for n in range(20)]
        before = disk.count("commit")
        outcomes = Outcomes()
        for log in logs:
            for _ in range(5):
                log.append(b"data", 1, 0, outcomes)
            log.cursors.open("s", 0).acknowledge([0, 1])
        await logs[0].flush()
        assert len(outcomes.places) == 100
        assert disk.count("commit") == before + 1


async def test_readers_are_woken_before_the_callers_of_any_log_are_answered() -> None:
    async with opened(DictDisk()) as storage:
        told: list[str] = []
        logs = [await storage.create(name) for name in (NAME, OTHER)]
        for log in logs:
            log.watch(lambda: told.append("reader"))
            log.append(b"data", 1, 0, lambda entry, error: told.append("caller"))
        await logs[0].flush()
        assert told == ["reader", "reader", "caller", "caller"]


async def test_times_of_entries_and_commits_are_counted() -> None:
    disk, timings = DictDisk(), Timings()
    storage = FileStorage(disk, clock=FixedClock(), timings=timings)
    await storage.open()
    log = await storage.create(NAME)
    before = sum(timings.sync.counts)
    disk.gate = asyncio.Event()
    outcomes = Outcomes()
    log.append(b"first", 1, 0, outcomes)
    await asyncio.sleep(0.3)
    log.append(b"second", 1, 0, outcomes)
    log.append(b"third", 1, 0, outcomes)
    await asyncio.sleep(0.4)
    disk.gate.set()
    await log.flush()
    await storage.close()
    assert sum(timings.sync.counts) == before + 2
    assert timings.sync.sum_s == pytest.approx(0.7)
    assert sum(timings.publish.counts) == 3
    assert timings.publish.sum_s == pytest.approx(0.7 + 2 * 0.4)


async def test_while_one_commit_runs_the_next_one_fills() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        before = disk.count("commit")
        disk.gate = asyncio.Event()
        outcomes = Outcomes()
        log.append(b"first", 1, 0, outcomes)
        for _ in range(20):
            await asyncio.sleep(0)
            log.append(b"more", 1, 0, outcomes)
        assert outcomes.places == []
        assert disk.count("commit") == before + 1
        disk.gate.set()
        await log.flush()
        assert len(outcomes.places) == 21
        assert disk.count("commit") == before + 2


async def test_a_log_is_deleted_with_entries_under_way_and_the_others_go_on() -> None:
    disk = DictDisk()
    storage = make(disk)
    await storage.open()
    log, other = await storage.create(NAME), await storage.create(OTHER)
    outcomes = Outcomes()
    disk.gate = asyncio.Event()
    log.append(b"on its way to the disk", 1, 1000, outcomes)
    await asyncio.sleep(0.01)
    log.append(b"waits for the next commit", 1, 1000, outcomes)
    deleting = asyncio.create_task(storage.delete(NAME))
    await asyncio.sleep(0.01)
    disk.gate.set()
    await deleting
    assert len(outcomes.places) == 2
    await put(other, b"later")
    left = await crashed(disk, storage)
    async with opened(left) as again:
        assert again.names() == [OTHER]
        found = again.get(OTHER)
        assert found is not None
        assert await contents(found) == [b"later"]


async def test_an_idle_journal_writes_nothing() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        before = len(disk.calls)
        for _ in range(50):
            await asyncio.sleep(0)
            await log.flush()
        assert len(disk.calls) == before


async def test_lone_acknowledgements_wait_for_company_but_not_for_long(loop: SimLoop) -> None:
    platter = Platter(loop)
    clock: Clock = SimClock(loop)
    storage = FileStorage(SimDisk(platter, SimProcess(loop, "storage")), clock=clock)
    await storage.open()
    log = await storage.create(NAME)
    cursor = log.cursors.open("s", 0)
    await log.flush()

    def size() -> int:
        return len(platter.files["journal/00000001.log"].data)

    start = size()
    for ordinal in range(10):
        cursor.acknowledge([ordinal])
        await asyncio.sleep(0)
    assert size() == start
    await asyncio.sleep(0.05)
    once = size()
    assert start < once < start + 300
    await cursor.flush()
    assert size() == once
    await storage.close()


@pytest.mark.parametrize("call", ["append", "sync"])
async def test_a_failed_commit_fails_everything_queued_and_all_that_comes(call: str) -> None:
    disk = DictDisk()
    storage = make(disk)
    told: list[PersistenceError] = []
    storage.watch_failure(told.append)
    await storage.open()
    log = await storage.create(NAME)
    await put(log, b"safe")
    disk.fault = lambda asked, file: OSError(errno.EIO, "gone") if asked == call else None
    disk.gate = asyncio.Event()
    first, second = Outcomes(), Outcomes()
    log.append(b"lost", 1, 0, first)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    log.append(b"lost too", 1, 0, second)
    flushing = asyncio.ensure_future(log.flush())
    disk.gate.set()
    with pytest.raises(PersistenceError):
        await flushing
    for outcomes in (first, second):
        assert outcomes.places == []
        assert [type(error) for error in outcomes.errors] == [PersistenceError]
    disk.fault = lambda asked, file: None
    assert len(told) == 1
    assert "journal/00000001.log" in str(told[0])
    with pytest.raises(PersistenceError):
        log.append(b"never", 1, 0, first)
    for doomed in (log.flush(), log.seal(), storage.create(OTHER), log.cursors.delete("s")):
        with pytest.raises(PersistenceError):
            await doomed
    assert log.extent.next_ordinal == 1
    assert await contents(log) == [b"safe"]
    await storage.close()


async def test_after_a_failed_commit_the_next_process_finds_what_was_confirmed() -> None:
    disk = DictDisk()
    storage = make(disk)
    await storage.open()
    log = await storage.create(NAME)
    await put(log, b"safe")
    disk.fault = lambda asked, file: OSError(errno.ENOSPC, "full") if asked == "append" else None
    log.append(b"lost", 1, 0, Outcomes())
    with pytest.raises(PersistenceError):
        await log.flush()
    await storage.close()
    async with opened(DictDisk(disk.files)) as again:
        found = again.get(NAME)
        assert found is not None
        assert await contents(found) == [b"safe"]


async def test_ledger_files_that_cannot_be_written_stop_the_storage_and_lose_nothing() -> None:
    disk = DictDisk()
    storage = make(disk, behind_bytes=1)
    await storage.open()
    log = await storage.create(NAME)
    disk.fault = lambda asked, file: OSError(errno.ENOSPC, "full") if file.startswith("ledgers/") else None
    await put(log, b"safe")
    for _ in range(10):
        await asyncio.sleep(0)
    with pytest.raises(PersistenceError):
        log.append(b"x", 1, 0, Outcomes())
    assert await contents(log) == [b"safe"]
    await storage.close()
    async with opened(DictDisk(disk.files)) as again:
        found = again.get(NAME)
        assert found is not None
        assert await contents(found) == [b"safe"]


async def test_a_failed_sync_of_ledger_files_stops_the_storage_even_for_want_of_room() -> None:
    disk = DictDisk()
    storage = make(disk)
    await storage.open()
    log = await storage.create(NAME)
    await put(log, b"safe")

    def no_room(call: str, file: str) -> OSError | None:
        if call != "sync" or not file.startswith("ledgers/"):
            return None
        # The kernel drops the bytes, and would report a second sync as done.
        disk.files[file], disk.fault = b"", lambda call, file: None
        return OSError(errno.ENOSPC, "full")

    disk.fault = no_room
    await storage.checkpoint()
    with pytest.raises(PersistenceError):
        log.append(b"x", 1, 0, Outcomes())
    await storage.close()
    async with opened(DictDisk(disk.files)) as again:
        found = again.get(NAME)
        assert found is not None
        assert await contents(found) == [b"safe"]


async def test_a_callback_that_fails_does_not_keep_others_from_being_told() -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(str(context["exception"]))
    )
    async with opened(DictDisk()) as storage:
        log = await storage.create(NAME)

        def broken(*_: object) -> None:
            raise RuntimeError("broken callback")

        outcomes = Outcomes()
        log.watch(broken)
        log.append(b"a", 1, 0, broken)
        log.append(b"b", 1, 0, outcomes)
        await log.flush()
        assert len(outcomes.places) == 1
        assert reported == ["broken callback"] * 2


async def test_a_flush_may_be_cancelled() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        outcomes = Outcomes()
        log.append(b"a", 1, 0, outcomes)
        flushing = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        await log.flush()
        assert len(outcomes.places) == 1


async def test_a_cancelled_storage_fails_what_is_queued() -> None:
    disk = DictDisk()
    storage = make(disk)
    await storage.open()
    log = await storage.create(NAME)
    disk.gate = asyncio.Event()
    outcomes = Outcomes()
    log.append(b"a", 1, 0, outcomes)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "ledger storage"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storage.close()
    assert [type(error) for error in outcomes.errors] == [PersistenceError]


async def test_a_storage_that_was_never_opened_can_be_closed() -> None:
    storage = make(DictDisk())
    with pytest.raises(AlreadyClosedError):
        await storage.create(NAME)
    await storage.close()


async def test_a_second_deletion_of_a_log_waits_until_the_first_is_durable() -> None:
    disk = DictDisk()
    stores = Stores(lambda number: make(disk))
    await stores.open(0)
    await stores.create(NAME, 0)
    disk.gate = asyncio.Event()
    first = asyncio.ensure_future(stores.delete(NAME))
    await asyncio.sleep(0)
    assert stores.get(NAME) is None
    second = asyncio.ensure_future(stores.delete(NAME))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not second.done(), "a crash would bring it back"
    disk.gate.set()
    await asyncio.gather(first, second)
    await stores.close(0)


async def test_acknowledgements_share_the_sync_of_frequent_appends() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        cursor = log.cursors.open("s", 0)
        await put(log, b"first")
        cursor.acknowledge([0])
        before = disk.count("commit")
        waiting = asyncio.ensure_future(cursor.flush(patient=True))
        await asyncio.sleep(0.004)
        assert disk.count("commit") == before, "the next append is likely to come soon"
        await put(log, b"second")
        assert waiting.done()
        assert disk.count("commit") == before + 1


async def test_acknowledgements_do_not_wait_for_an_append_that_does_not_come() -> None:
    disk = DictDisk()
    async with opened(disk) as storage:
        log = await storage.create(NAME)
        cursor = log.cursors.open("s", 0)
        await put(log, b"first")
        loop = asyncio.get_running_loop()
        cursor.acknowledge([0])
        began_s = loop.time()
        await cursor.flush(patient=True)
        assert loop.time() - began_s == pytest.approx(0.01)
        await asyncio.sleep(1)
        cursor.acknowledge([1])
        began_s = loop.time()
        await cursor.flush(patient=True)
        assert loop.time() == began_s, "no append came for a while"


async def test_an_impatient_caller_ends_the_wait_of_patient_ones() -> None:
    async with opened(DictDisk()) as storage:
        log = await storage.create(NAME)
        cursor = log.cursors.open("s", 0)
        await put(log, b"first")
        cursor.acknowledge([0])
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        waiting = asyncio.ensure_future(cursor.flush(patient=True))
        await asyncio.sleep(0)
        await cursor.flush()
        assert waiting.done()
        assert loop.time() == began_s
