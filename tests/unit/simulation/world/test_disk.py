"""The simulated disk: survival of kills and power failures, and its errors."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from anabranch.errors import ConflictError, HeldError
from anabranch.ledger.disk import DiskFullError
from simulation.world.disk import SimDisk
from simulation.world.loop import SimLoop, SimulationError
from simulation.world.platter import Platter
from simulation.world.process import SimProcess


@pytest.fixture
def platter(loop: SimLoop) -> Platter:
    return Platter(loop)


def start(loop: SimLoop, platter: Platter, name: str = "broker") -> tuple[SimProcess, SimDisk]:
    process = SimProcess(loop, name)
    return process, SimDisk(platter, process)


def content(platter: Platter, name: str) -> bytes:
    return bytes(platter.files[name].data)


async def test_written_bytes_are_read_back(loop: SimLoop, platter: Platter) -> None:
    _, disk = start(loop, platter)
    await disk.append([("a", [b"one", b"two"]), ("b/c", [b"three"])])
    await disk.append([("a", [b"four"])], sync=True)
    assert await disk.read("a", 3, 100) == b"twofour"
    assert await disk.sizes() == {"a": 10, "b/c": 5}
    await disk.truncate("a", 4)
    assert await disk.read("a", 0, 100) == b"onet"
    await disk.replace("a", b"new")
    await disk.delete(["b/c", "unknown"])
    assert await disk.sizes() == {"a": 3}
    with pytest.raises(FileNotFoundError):
        await disk.read("b/c", 0, 1)


async def test_a_kill_keeps_the_cache(loop: SimLoop, platter: Platter) -> None:
    process, disk = start(loop, platter)
    await disk.append([("a", [b"not synced"])])
    process.kill()
    assert content(platter, "a") == b"not synced"


@pytest.mark.parametrize("seed", range(30))
async def test_synced_bytes_survive_every_power_failure(loop: SimLoop, platter: Platter) -> None:
    process, disk = start(loop, platter)
    await disk.append([("a", [b"durable"])], sync=True)
    await disk.append([("a", [bytes(5000)])])
    process.kill(machine=True)
    assert content(platter, "a").startswith(b"durable")


def crashed(seed: int, work: Callable[[SimProcess, SimDisk], Coroutine[Any, Any, None]]) -> Platter:
    """Return the disk as a power failure at the end of this work leaves it."""
    with SimLoop(seed) as loop:
        platter = Platter(loop)
        process, disk = start(loop, platter)
        loop.run(work(process, disk))
        process.kill(machine=True)
        assert loop.errors == []
        return platter


async def write_and_delete(process: SimProcess, disk: SimDisk) -> None:
    await disk.append([("a", [b"durable"])], sync=True)
    await disk.append([("a", [b"x" * 5000]), ("b", [b"y"])])
    await disk.delete(["c"])


def test_power_failures_do_every_kind_of_damage() -> None:
    kinds: set[str] = set()
    for seed in range(60):
        kinds |= set(crashed(seed, write_and_delete).outcomes)
    assert {"dropped", "kept", "torn", "zeros", "holes", "name lost"} <= kinds


async def sync_for_a_moment(process: SimProcess, disk: SimDisk) -> None:
    process.spawn(disk.append([("a", [b"entry"])], sync=True))
    await asyncio.sleep(process.loop.random("when").uniform(0, 0.005))


def test_a_crash_during_a_sync_may_lose_what_it_was_syncing() -> None:
    platters = [crashed(seed, sync_for_a_moment) for seed in range(60)]
    kept = ["a" in platter.files and content(platter, "a") == b"entry" for platter in platters]
    assert any(kept)
    assert not all(kept)


async def replace_for_a_moment(process: SimProcess, disk: SimDisk) -> None:
    await disk.replace("a", b"old")
    process.spawn(disk.replace("a", b"new"))
    await asyncio.sleep(process.loop.random("when").uniform(0, 0.008))


def test_replace_is_old_or_new_after_a_crash() -> None:
    seen = {content(crashed(seed, replace_for_a_moment), "a") for seed in range(60)}
    assert seen == {b"old", b"new"}


async def write_then_delete(process: SimProcess, disk: SimDisk) -> None:
    await disk.append([("a", [b"x"])], sync=True)
    await disk.delete(["a"])


def test_a_deleted_file_may_come_back() -> None:
    back = sum("a" in crashed(seed, write_then_delete).files for seed in range(20))
    assert 0 < back < 20


async def test_a_failed_sync_drops_the_cache_and_the_next_one_succeeds(
    loop: SimLoop, platter: Platter
) -> None:
    _, disk = start(loop, platter)
    await disk.append([("a", [b"safe"])], sync=True)
    platter.fail_next("sync")
    with pytest.raises(OSError, match="Input/output") as raised:
        await disk.append([("a", [b"lost"])], sync=True)
    assert raised.value.errno == errno.EIO
    await disk.sync(["a"])
    assert content(platter, "a") == b"safe"


async def test_a_full_disk_writes_a_part(loop: SimLoop, platter: Platter) -> None:
    _, disk = start(loop, platter)
    platter.fail_next("append", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        await disk.append([("a", [b"x" * 1000])])
    assert len(content(platter, "a")) < 1000


async def test_two_processes_cannot_hold_one_directory_until_one_dies(
    loop: SimLoop, platter: Platter
) -> None:
    first, disk = start(loop, platter)
    await disk.lock()
    _, other = start(loop, platter, "other")
    with pytest.raises(ConflictError, match="in use by process broker"):
        await other.lock()
    first.kill()
    await other.lock()


async def test_a_holder_is_fenced_by_its_name_only(loop: SimLoop, platter: Platter) -> None:
    first, disk = start(loop, platter)
    await disk.lock("broker 1/7")
    first.pause()
    _, other = start(loop, platter, "other")
    with pytest.raises(HeldError) as refused:
        await other.lock("broker 2/8", fence="broker 1/6")
    assert refused.value.holder == "broker 1/7"
    assert first.alive
    await other.lock("broker 2/8", fence="broker 1/7")
    assert not first.alive


async def test_a_process_does_not_fence_itself(loop: SimLoop, platter: Platter) -> None:
    first, disk = start(loop, platter)
    await disk.lock("me")
    with pytest.raises(HeldError):
        await SimDisk(platter, first).lock("me", fence="me")
    assert first.alive


async def test_two_changes_of_one_file_at_once_are_refused(loop: SimLoop, platter: Platter) -> None:
    _, disk = start(loop, platter)
    first = asyncio.ensure_future(disk.append([("a", [b"1"])]))
    await asyncio.sleep(0)
    with pytest.raises(SimulationError, match="under way"):
        await disk.append([("a", [b"2"])])
    await first


async def test_cancelling_the_caller_does_not_stop_the_call(loop: SimLoop, platter: Platter) -> None:
    _, disk = start(loop, platter)
    call = asyncio.ensure_future(disk.append([("a", [b"1"])]))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(1)
    assert content(platter, "a") == b"1"


async def test_a_flipped_bit_changes_one_bit_of_one_file(loop: SimLoop, platter: Platter) -> None:
    assert platter.flip_bit() is None
    _, disk = start(loop, platter)
    await disk.append([("a/x", [bytes(10)]), ("b/y", [bytes(10)])])
    place = platter.flip_bit("b/")
    assert place is not None
    assert place.startswith("b/y ")
    assert content(platter, "a/x") == bytes(10)
    assert int.from_bytes(content(platter, "b/y"), "little").bit_count() == 1


async def test_without_room_a_write_changes_nothing(loop: SimLoop, platter: Platter) -> None:
    _, disk = start(loop, platter)
    await disk.append([("a", [b"12345"])])
    platter.capacity_bytes = 10
    assert await disk.reserve(3) == 3
    assert (await disk.space()).free_bytes == 2
    with pytest.raises(DiskFullError):
        await disk.append([("a", [b"67"]), ("b", [b"8"])], sync=True)
    with pytest.raises(DiskFullError):
        await disk.replace("c", b"789")
    assert await disk.sizes() == {"a": 5}
    assert await disk.reserve(100) == 3, "a reserve that does not fit stays as it is"
    await disk.reserve(0)
    await disk.append([("a", [b"67890"])])
    assert platter.outcomes["disk full"] == 2


async def test_a_share_of_reads_fails_and_later_reads_succeed(loop: SimLoop, platter: Platter) -> None:
    _, disk = start(loop, platter)
    await disk.append([("a", [b"12345"])])
    platter.fail_next("read")
    with pytest.raises(OSError, match="Input/output error"):
        await disk.read("a", 0, 5)
    platter.read_errors = 0.5
    failed = 0
    for _ in range(100):
        try:
            assert await disk.read("a", 0, 5) == b"12345"
        except OSError:
            failed += 1
    assert 20 < failed < 80
    assert platter.outcomes["read failed"] == failed + 1
