"""Spilled entries on the simulated disk: no crash loses an entry, or brings an acknowledged one back.

The cursor and the log of a subscription are compared with the plainest model: the messages that are pending.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from anabranch.broker.serving.side_logs import side_log, spilling
from anabranch.broker.serving.side_logs.side_log import CURSOR
from anabranch.errors import StorageFullError
from anabranch.ledger.file_log import FileLog
from anabranch.ledger.storage import AppendDone
from anabranch.model.side_logs import is_side_log
from simulation.world.loop import SimLoop
from tests.harness.spilling import STEPS, SpillingStore, sides, with_hot_key


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spill takes several slices, so that a crash finds some of them done."""
    monkeypatch.setattr(spilling, "SLICE_ENTRIES", 3)
    monkeypatch.setattr(side_log, "BATCH_ENTRIES", 6)


@pytest.fixture
async def store(loop: SimLoop) -> SpillingStore:
    store = SpillingStore(loop)
    await store.start()
    return store


async def test_spilled_entries_are_read_from_the_side_log_once_the_log_is_trimmed(
    store: SpillingStore,
) -> None:
    async def work() -> None:
        await with_hot_key(store)
        before = store.log.extent.size_bytes
        await store.spill()
        await store.check()
        await store.trim()
        assert store.log.extent.size_bytes < before / 3
        assert store.log.extent.first_ordinal > 30
        await store.check()
        (side,) = sides(store)
        assert side.cursors[CURSOR].acks.mark == 0

    await store.run(work)


async def test_a_drained_side_log_is_deleted_and_the_sets_are_one_again(store: SpillingStore) -> None:
    async def work() -> None:
        await with_hot_key(store)
        await store.spill()
        await store.trim()
        for ordinal in list(store.pending):
            await store.acknowledge([ordinal])
        await store.spill()
        assert sides(store) == []
        assert store.log.cursors["s"].acks == store.backing.cursor.acks
        assert store.log.cursors["s"].note == b""
        await store.publish(3)
        await store.check()

    await store.run(work)
    await store.crash(machine=True)
    await store.run(store.check)


async def test_few_bytes_or_mostly_pending_entries_are_not_spilled(store: SpillingStore) -> None:
    async def work() -> None:
        await store.publish(60)
        await store.spill()
        assert sides(store) == [], "copies of all entries would free nothing"
        await store.acknowledge(list(range(2, 58)))
        await store.spill()
        assert len(sides(store)) == 1

    await store.run(work)


async def test_nothing_is_spilled_if_another_subscription_keeps_the_log_anyway(store: SpillingStore) -> None:
    async def work() -> None:
        store.log.cursors.open("other", 0)
        await with_hot_key(store)
        await store.spill()
        assert sides(store) == []

    await store.run(work)


async def test_nothing_is_spilled_when_it_is_switched_off(loop: SimLoop) -> None:
    store = SpillingStore(loop)
    await store.start(spill_bytes=None)

    async def work() -> None:
        await with_hot_key(store)
        await store.spill()
        assert sides(store) == []

    await store.run(work)


async def test_partly_acknowledged_entries_stay_so_in_the_side_log(store: SpillingStore) -> None:
    async def work() -> None:
        await store.publish(40, messages=5)
        await store.acknowledge([at for at in range(40) if at % 4])
        await store.acknowledge_part(4, 0b10110)
        await store.spill()
        await store.trim()
        await store.check()
        await store.acknowledge_part(4, 0b11011)
        await store.acknowledge_part(8, 0b00111)
        await store.check()

    await store.run(work)
    await store.crash(machine=True)

    async def later() -> None:
        await store.check()
        await store.acknowledge_part(4, 0b01101)
        assert 4 not in store.pending
        await store.check()

    await store.run(later)


async def test_a_seek_forgets_side_logs_at_once_and_a_crash_does_not_bring_them_back(
    store: SpillingStore,
) -> None:
    async def work() -> None:
        await with_hot_key(store)
        await store.spill()
        await store.trim()
        aim = store.log.extent.first_ordinal + 1
        store.backing.cursor.reset(aim)
        store.pending = dict.fromkeys(range(aim, store.log.extent.next_ordinal), 1)
        await store.check()
        await store.backing.cursor.flush()

    store.points.step = "spill.drained"
    await store.run(work)
    await store.crash(machine=False)
    await store.run(store.check)


async def test_a_seek_back_does_not_spill_into_a_log_that_is_being_deleted(store: SpillingStore) -> None:
    async def work() -> None:
        await with_hot_key(store, 100)
        await store.spill()
        (old,) = sides(store)
        store.points.step = "spill.drained"
        store.backing.cursor.reset(0)
        await store.acknowledge([at for at in range(100) if at % 3])
        store.pending = dict.fromkeys(range(0, 100, 3), 1)
        store.backing.look_soon(store.log.extent.next_ordinal)
        await asyncio.sleep(10)
        assert sides(store) == [old]
        await store.check()

    await store.run(work)
    await store.crash(machine=False)

    async def later() -> None:
        await store.trim()
        await store.spill()
        await store.trim()
        await store.check()

    await store.run(later)


async def test_a_deleted_subscription_leaves_no_side_log(store: SpillingStore) -> None:
    async def work() -> None:
        await with_hot_key(store)
        await store.spill()
        await store.log.cursors.delete("s")
        await store.backing.delete()
        assert sides(store) == []

    await store.run(work)


async def test_a_cumulative_acknowledgement_takes_spilled_entries(store: SpillingStore) -> None:
    async def work() -> None:
        await with_hot_key(store)
        await store.spill()
        await store.trim()
        store.backing.cursor.acknowledge_up_to(20)
        store.pending = {at: bits for at, bits in store.pending.items() if at >= 20}
        await store.backing.cursor.flush()
        await store.check()

    await store.run(work)
    await store.crash(machine=True)
    await store.run(store.check)


@pytest.mark.parametrize("machine", [False, True])
@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_at_any_step_loses_and_repeats_nothing(loop: SimLoop, step: str, machine: bool) -> None:
    store = SpillingStore(loop)
    await store.start()

    async def work() -> None:
        await with_hot_key(store)
        store.points.step = step
        store.backing.look_soon(store.log.extent.next_ordinal)
        if step in ("spill.drained", "spill.deleted"):
            await store.spill()
            await store.trim()
            await store.acknowledge(list(store.pending))
        await store.points.reached.wait()

    await store.run(work)
    await store.crash(machine=machine)

    async def later() -> None:
        await store.check()
        await store.spill()
        await store.trim()
        await store.check()
        await store.acknowledge(list(store.pending))
        await store.spill()
        await store.trim()
        assert sides(store) == []
        await store.check()

    await store.run(later)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_spill_that_fails_is_tried_again_and_loses_nothing(
    store: SpillingStore, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    honest, room = FileLog.append, 8

    def append(self: FileLog, data: bytes, count: int, timestamp_ms: int, done: AppendDone) -> None:
        nonlocal room
        room -= is_side_log(self.name)
        if room < 0 and is_side_log(self.name):
            if at_once:
                raise StorageFullError("no room")
            asyncio.get_running_loop().call_soon(done, None, StorageFullError("no room"))
        else:
            honest(self, data, count, timestamp_ms, done)

    async def work() -> None:
        nonlocal room
        await with_hot_key(store)
        monkeypatch.setattr(FileLog, "append", append)
        await store.spill()
        assert "lanes cannot be spilled" in store.backing.troubles[0]
        await store.check()
        room = 1000
        await asyncio.sleep(20)
        assert store.backing.troubles == []
        await store.trim()
        await store.check()
        await store.acknowledge(list(store.pending))
        await store.spill()
        assert sides(store) == []

    await store.run(work)
    await store.crash(machine=True)
    await store.run(store.check)


async def step_of(store: SpillingStore, rng: random.Random) -> None:
    what, pending = rng.random(), sorted(store.pending)
    if what < 0.35 or not pending:
        await store.publish(rng.randrange(1, 30), messages=rng.choice((1, 1, 4)))
    elif what < 0.6:
        await store.acknowledge(rng.sample(pending, rng.randrange(1, len(pending) + 1)))
    elif what < 0.7:
        await store.acknowledge_part(rng.choice(pending[: len(pending) // 2 + 1]), rng.randrange(16))
    elif what < 0.85:
        await store.spill()
    elif what < 0.88:
        aim = rng.choice(pending)
        store.backing.cursor.acknowledge_up_to(aim)
        store.pending = {at: bits for at, bits in store.pending.items() if at >= aim}
        await store.backing.cursor.flush()
    else:
        await store.trim()


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_of_steps_and_crashes_keeps_the_pending_entries(loop: SimLoop, seed: int) -> None:
    rng = random.Random(seed)
    store = SpillingStore(loop)
    await store.start()

    async def work() -> None:
        for _ in range(rng.randrange(5, 25)):
            await step_of(store, rng)
            await store.check()
        store.points.step, store.points.times = rng.choice(STEPS), rng.randrange(1, 4)
        store.backing.look_soon(store.log.extent.next_ordinal)
        await asyncio.sleep(rng.uniform(1, 1.2))

    for _ in range(4):
        await store.run(work)
        await store.crash(machine=rng.random() < 0.5)
        await store.run(store.check)
