"""Failpoints, clocks and metadata sessions of simulated processes."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from anabranch.errors import MetadataError
from anabranch.metadata.memory import MemoryTree
from simulation.world.faults import EPOCH_MS, SimClock, SimFailpoints, SimStore, StoreTrouble
from simulation.world.loop import SimLoop
from simulation.world.process import PROCESS, SimProcess


async def test_a_failpoint_kills_at_its_step_and_nothing_after_it_runs(loop: SimLoop) -> None:
    ran: list[str] = []

    async def work(failpoints: SimFailpoints) -> None:
        try:
            for step in ("planned", "created", "sealed"):
                await failpoints.reach(step)
                ran.append(step)
        finally:
            ran.append("finally")

    process = SimProcess(loop, "broker")
    reached: Counter[str] = Counter()
    process.spawn(work(SimFailpoints(process, "created", reached)))
    await asyncio.sleep(10)
    assert not process.alive
    assert ran == ["planned"]
    assert reached == {"planned": 1, "created": 1, "died at created": 1}


async def test_a_clock_may_be_off_and_jump(loop: SimLoop) -> None:
    clock = SimClock(loop, offset_ms=5000)
    assert clock.wall_ms() == EPOCH_MS + 5000
    await asyncio.sleep(100)
    assert clock.wall_ms() == pytest.approx(EPOCH_MS + 105_000, abs=1)
    clock.jump(-60_000)
    assert clock.wall_ms() == pytest.approx(EPOCH_MS + 45_000, abs=1)


async def test_the_tree_survives_a_process_and_its_session_does_not(loop: SimLoop) -> None:
    tree = MemoryTree()
    first = SimProcess(loop, "first")
    store = SimStore(tree, first, lease_s=3)
    await first.spawn(store.put("/kept", b"1"))
    await first.spawn(store.put("/lease", b"1", ephemeral=True))
    first.kill()
    other = SimStore(tree, SimProcess(loop, "second"))
    assert await other.get("/lease") is not None
    await asyncio.sleep(4)
    assert await other.get("/lease") is None
    assert await other.get("/kept") is not None


async def test_a_crash_may_fall_between_the_effect_of_a_put_and_its_answer(loop: SimLoop) -> None:
    applied = answered = 0
    for number in range(40):
        tree, process = MemoryTree(), SimProcess(loop, f"p{number}")
        call = process.spawn(SimStore(tree, process).put("/a", b"1"))
        await asyncio.sleep(loop.random(f"{number}").uniform(0, 0.003))
        process.kill()
        applied += "/a" in tree.values
        answered += call.done()
    assert 40 > applied > answered > 0


async def test_a_store_may_refuse_or_lose_its_answer(loop: SimLoop) -> None:
    tree = MemoryTree()
    process = SimProcess(loop, "p")
    with pytest.raises(MetadataError, match="did not answer"):
        await SimStore(tree, process, trouble=StoreTrouble(refuse=1.0)).put("/a", b"1")
    assert "/a" not in tree.values
    with pytest.raises(MetadataError, match="was lost"):
        await SimStore(tree, process, trouble=StoreTrouble(lose_reply=1.0)).put("/a", b"1")
    assert "/a" in tree.values


async def test_a_process_that_stands_still_for_longer_than_its_lease_is_taken_for_dead(loop: SimLoop) -> None:
    tree = MemoryTree()
    process = SimProcess(loop, "p")
    store = SimStore(tree, process, lease_s=3)
    await process.spawn(store.put("/here", b"1", ephemeral=True))
    await asyncio.sleep(20)
    assert "/here" in tree.values, "it lives"
    process.pause()
    await asyncio.sleep(2)
    assert "/here" in tree.values, "its lease is not over"
    await asyncio.sleep(2)
    assert "/here" not in tree.values
    assert store.lapses == 1
    process.resume()
    await process.spawn(store.put("/here", b"2", ephemeral=True))
    await asyncio.sleep(20)
    assert "/here" in tree.values, "the process continues"


async def test_watchers_are_told_late_and_twice_but_never_of_nothing(loop: SimLoop) -> None:
    tree = MemoryTree()
    process = SimProcess(loop, "p")
    store = SimStore(tree, process, trouble=StoreTrouble(watch_late_s=0.5, watch_twice=0.5))
    told: list[float] = []
    store.watch("/a", lambda change: told.append(loop.time()))
    undo = store.watch("/a", lambda change: told.append(-1.0))
    undo()
    for number in range(20):
        await store.put("/a/b", b"%d" % number)
        await asyncio.sleep(1)
    assert min(told) >= 0, "a removed watcher is not notified"
    assert 20 < len(told) <= 40
    before = len(told)
    await asyncio.sleep(10)
    assert len(told) == before


@pytest.mark.parametrize("watch_late_s", [0.0, 0.5])
async def test_a_watcher_hears_of_the_last_write_of_a_process_that_died(
    loop: SimLoop, watch_late_s: float
) -> None:
    tree = MemoryTree()
    told: list[tuple[str, SimProcess | None]] = []
    watcher, writer = SimProcess(loop, "watcher"), SimProcess(loop, "writer")
    watching = SimStore(tree, watcher, trouble=StoreTrouble(watch_late_s=watch_late_s))
    watching.watch("/a", lambda path: told.append((path, PROCESS.get())))
    writing = SimStore(tree, writer)
    writing.latency_s = (0.001, 0.001)
    writer.spawn(writing.put("/a/b", b"1"))
    # The value is stored, and the answer is on its way.
    await asyncio.sleep(0.0015)
    assert "/a/b" in tree.values
    writer.kill()
    await asyncio.sleep(1)
    assert told == [("/a/b", watcher)]


@pytest.mark.parametrize("watch_late_s", [0.0, 0.5])
async def test_a_watcher_that_stands_still_hears_of_a_change_when_it_goes_on(
    loop: SimLoop, watch_late_s: float
) -> None:
    tree, watcher = MemoryTree(), SimProcess(loop, "watcher")
    told: list[str] = []
    watching = SimStore(tree, watcher, trouble=StoreTrouble(watch_late_s=watch_late_s))
    watching.watch("/a", told.append)
    watcher.pause()
    await SimStore(tree, SimProcess(loop, "writer")).put("/a/b", b"1")
    await asyncio.sleep(1)
    assert told == []
    watcher.resume()
    await asyncio.sleep(1)
    assert told == ["/a/b"]
