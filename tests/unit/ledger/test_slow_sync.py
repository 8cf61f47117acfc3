"""A disk that takes seconds for a sync delays receipts, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.ledger.file_storage import FileStorage
from simulation.world.disk import SimDisk
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.platter import Platter
from simulation.world.process import SimProcess
from tests.harness.storage import NAME, Outcomes, contents, put


def storage_on(loop: SimLoop, platter: Platter) -> FileStorage:
    return FileStorage(SimDisk(platter, SimProcess(loop, "storage")), clock=SimClock(loop))


async def test_a_slow_sync_delays_its_own_store_and_is_reported(
    loop: SimLoop, caplog: pytest.LogCaptureFixture
) -> None:
    platters = [Platter(loop, name) for name in ("slow", "fast")]
    slow, fast = storages = [storage_on(loop, platter) for platter in platters]
    for storage in storages:
        await storage.open()
    logs = [await storage.create(NAME) for storage in storages]
    await put(logs[0], b"stored")
    platters[0].sync_latency_s = (4.0, 8.0)
    outcomes = Outcomes()
    logs[0].append(b"waits", 1, 1000, outcomes)
    await asyncio.sleep(2)
    assert outcomes.places == []
    assert logs[0].slow is not None
    assert logs[1].slow is None
    await put(logs[1], b"other store")
    assert await contents(logs[0]) == [b"stored"], "reading goes on"
    assert outcomes.places == []
    await logs[0].flush()
    assert len(outcomes.places) == 1
    assert logs[0].slow is None
    assert len([line for line in caplog.messages if "for a sync" in line]) == 1
    for storage in (slow, fast):
        await storage.close()
