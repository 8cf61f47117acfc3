"""The simulated disk: what survives a kill, what survives a power failure, and what it reports."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

import pytest

from anabranch.errors import ConflictError, HeldError
from anabranch.testing.simdisk import Platter, SimDisk
from anabranch.testing.simloop import SimLoop, SimProcess, SimulationError


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    with SimLoop(seed=5) as loop:
        yield loop


@pytest.fixture
def platter(loop: SimLoop) -> Platter:
    return Platter(loop)


def start(loop: SimLoop, platter: Platter, name: str = "broker") -> tuple[SimProcess, SimDisk]:
    process = SimProcess(loop, name)
    return process, SimDisk(platter, process)


def content(platter: Platter, name: str) -> bytes:
    return bytes(platter.files[name].data)


def test_written_bytes_are_read_back(loop: SimLoop, platter: Platter) -> None:
    async def main() -> None:
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

    loop.run(main())


def test_a_kill_keeps_the_cache(loop: SimLoop, platter: Platter) -> None:
    async def main() -> None:
        process, disk = start(loop, platter)
        await disk.append([("a", [b"not synced"])])
        process.kill()
        assert content(platter, "a") == b"not synced"

    loop.run(main())


def test_synced_bytes_survive_every_power_failure() -> None:
    for seed in range(30):
        with SimLoop(seed) as loop:
            platter = Platter(loop)

            async def main(loop: SimLoop = loop, platter: Platter = platter) -> None:
                process, disk = start(loop, platter)
                await disk.append([("a", [b"durable"])], sync=True)
                await disk.append([("a", [bytes(5000)])])
                process.kill(machine=True)
                assert content(platter, "a").startswith(b"durable")

            loop.run(main())


def test_power_failures_do_every_kind_of_damage() -> None:
    kinds: set[str] = set()
    for seed in range(60):
        with SimLoop(seed) as loop:
            platter = Platter(loop)

            async def main(loop: SimLoop = loop, platter: Platter = platter) -> None:
                process, disk = start(loop, platter)
                await disk.append([("a", [b"durable"])], sync=True)
                await disk.append([("a", [b"x" * 5000]), ("b", [b"y"])])
                await disk.delete(["c"])
                process.kill(machine=True)

            loop.run(main())
            kinds |= set(platter.outcomes)
    assert {"dropped", "kept", "torn", "zeros", "holes", "name lost"} <= kinds


def test_a_crash_during_a_sync_may_lose_what_it_was_syncing() -> None:
    lost = kept = 0
    for seed in range(60):
        with SimLoop(seed) as loop:
            platter = Platter(loop)

            async def main(loop: SimLoop = loop, platter: Platter = platter) -> None:
                process, disk = start(loop, platter)
                process.spawn(disk.append([("a", [b"entry"])], sync=True))
                await asyncio.sleep(loop.random("when").uniform(0, 0.005))
                process.kill(machine=True)

            loop.run(main())
            if "a" in platter.files and content(platter, "a") == b"entry":
                kept += 1
            else:
                lost += 1
    assert lost
    assert kept


def test_replace_is_old_or_new_after_a_crash() -> None:
    seen: set[bytes] = set()
    for seed in range(60):
        with SimLoop(seed) as loop:
            platter = Platter(loop)

            async def main(loop: SimLoop = loop, platter: Platter = platter) -> None:
                process, disk = start(loop, platter)
                await disk.replace("a", b"old")
                process.spawn(disk.replace("a", b"new"))
                await asyncio.sleep(loop.random("when").uniform(0, 0.008))
                process.kill(machine=True)
                seen.add(content(platter, "a"))

            loop.run(main())
    assert seen == {b"old", b"new"}


def test_a_deleted_file_may_come_back() -> None:
    back = 0
    for seed in range(20):
        with SimLoop(seed) as loop:
            platter = Platter(loop)

            async def main(loop: SimLoop = loop, platter: Platter = platter) -> None:
                process, disk = start(loop, platter)
                await disk.append([("a", [b"x"])], sync=True)
                await disk.delete(["a"])
                process.kill(machine=True)

            loop.run(main())
            back += "a" in platter.files
    assert 0 < back < 20


def test_a_failed_sync_drops_the_cache_and_the_next_one_succeeds(loop: SimLoop, platter: Platter) -> None:
    async def main() -> None:
        _, disk = start(loop, platter)
        await disk.append([("a", [b"safe"])], sync=True)
        platter.fail_next("sync")
        with pytest.raises(OSError, match="Input/output") as raised:
            await disk.append([("a", [b"lost"])], sync=True)
        assert raised.value.errno == errno.EIO
        await disk.sync(["a"])
        assert content(platter, "a") == b"safe"

    loop.run(main())


def test_a_full_disk_writes_a_part(loop: SimLoop, platter: Platter) -> None:
    async def main() -> None:
        _, disk = start(loop, platter)
        platter.fail_next("append", errno.ENOSPC)
        with pytest.raises(OSError, match="space"):
            await disk.append([("a", [b"x" * 1000])])
        assert len(content(platter, "a")) < 1000

    loop.run(main())


def test_two_processes_cannot_hold_one_directory_until_one_dies(loop: SimLoop, platter: Platter) -> None:
    async def main() -> None:
        first, disk = start(loop, platter)
        await disk.lock()
        _, other = start(loop, platter, "other")
        with pytest.raises(ConflictError, match="in use by process broker"):
            await other.lock()
        first.kill()
        await other.lock()

    loop.run(main())


def test_a_holder_is_fenced_by_its_name_only(loop: SimLoop, platter: Platter) -> None:
    async def main() -> None:
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

    loop.run(main())


def test_a_process_does_not_fence_itself(loop: SimLoop, platter: Platter) -> None:
    async def main() -> None:
        first, disk = start(loop, platter)
        await disk.lock("me")
        with pytest.raises(HeldError):
            await SimDisk(platter, first).lock("me", fence="me")
        assert first.alive

    loop.run(main())


def test_two_changes_of_one_file_at_once_are_refused(loop: SimLoop, platter: Platter) -> None:
    async def main() -> None:
        _, disk = start(loop, platter)
        first = asyncio.ensure_future(disk.append([("a", [b"1"])]))
        await asyncio.sleep(0)
        with pytest.raises(SimulationError, match="under way"):
            await disk.append([("a", [b"2"])])
        await first

    loop.run(main())


def test_cancelling_the_caller_does_not_stop_the_call(loop: SimLoop, platter: Platter) -> None:
    async def main() -> None:
        _, disk = start(loop, platter)
        call = asyncio.ensure_future(disk.append([("a", [b"1"])]))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(1)
        assert content(platter, "a") == b"1"

    loop.run(main())
