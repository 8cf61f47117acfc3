"""The virtual-time loop and its processes."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys

import pytest

from simulation.world.loop import DeadlockError, SimLoop, SimulationError, VirtualTimeoutError
from simulation.world.process import SimProcess


async def wait_for_nothing() -> None:
    await asyncio.get_running_loop().create_future()


async def tick(pause_s: float) -> None:
    while True:  # noqa: ASYNC110
        await asyncio.sleep(pause_s)


@pytest.mark.virtual_time(limit_s=100_000)
async def test_a_day_of_sleep_takes_no_time(loop: SimLoop) -> None:
    await asyncio.sleep(86_400)
    assert loop.time() == pytest.approx(86_400)


def test_a_wait_that_nothing_can_end_is_an_error(loop: SimLoop) -> None:
    with pytest.raises(DeadlockError, match="wait_for_nothing"):
        loop.run(wait_for_nothing())


def test_a_program_that_only_waits_for_timers_ends_with_its_virtual_time(loop: SimLoop) -> None:
    with pytest.raises(VirtualTimeoutError):
        loop.run(tick(1), limit_s=60)


def test_a_task_that_spins_is_an_error(loop: SimLoop) -> None:
    with pytest.raises(SimulationError, match="time stands still"):
        loop.run(tick(0))


async def test_threads_are_refused() -> None:
    with pytest.raises(SimulationError, match="threads"):
        await asyncio.to_thread(print)


async def test_callbacks_of_one_instant_run_in_the_order_they_were_made(loop: SimLoop) -> None:
    seen: list[int] = []

    for number in range(20):
        loop.call_soon(seen.append, number)
    await asyncio.sleep(0)
    assert seen == list(range(20))


async def test_timeouts_and_task_groups_work_in_virtual_time(loop: SimLoop) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(100))
    assert loop.time() == pytest.approx(5)


@pytest.mark.virtual_time(errors=["broken"])
async def test_an_unhandled_exception_is_kept(loop: SimLoop) -> None:
    def fail() -> None:
        raise ValueError("broken")

    loop.call_soon(fail)
    await asyncio.sleep(0)
    assert len(loop.errors) == 1
    assert "broken" in loop.errors[0]


async def test_a_killed_process_runs_no_finally_and_no_except(loop: SimLoop) -> None:
    ran: list[str] = []

    async def victim() -> None:
        try:
            ran.append("started")
            await asyncio.sleep(10)
            ran.append("slept")
        except BaseException:
            ran.append("except")
            raise
        finally:
            ran.append("finally")

    process = SimProcess(loop, "victim")
    process.spawn(victim())
    await asyncio.sleep(1)
    process.kill()
    await asyncio.sleep(100)
    assert ran == ["started"]


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("of_a_process", [False, True])
async def test_a_task_without_references_outlives_garbage_collection(
    loop: SimLoop, of_a_process: bool, dead: bool
) -> None:
    ran: list[str] = []

    async def wait() -> None:
        try:
            await loop.create_future()
        finally:
            ran.append("finally")

    process = SimProcess(loop, "program")
    start = process.spawn if of_a_process else loop.create_task
    start(wait())
    await asyncio.sleep(1)
    if dead:
        process.kill()
    gc.collect()
    assert not ran


async def test_tasks_started_by_a_process_belong_to_it(loop: SimLoop) -> None:
    ran: list[str] = []

    async def child() -> None:
        await asyncio.sleep(2)
        ran.append("child")

    async def parent() -> None:
        asyncio.get_running_loop().call_later(2, ran.append, "timer")
        await asyncio.create_task(child())

    process = SimProcess(loop, "victim")
    process.spawn(parent())
    await asyncio.sleep(1)
    process.kill()
    await asyncio.sleep(10)
    assert ran == []


async def test_a_death_is_told_and_the_living_go_on(loop: SimLoop) -> None:
    told: list[str] = []

    async def ticks() -> None:
        for _ in range(5):
            await asyncio.sleep(1)
            told.append("tick")

    dying, living = SimProcess(loop, "dying"), SimProcess(loop, "living")
    dying.on_death.append(lambda: told.append("died"))
    dying.spawn(ticks())
    task = living.spawn(ticks())
    await asyncio.sleep(0.5)
    dying.kill()
    dying.kill()
    await task
    assert told == ["died"] + ["tick"] * 5


async def test_a_process_may_kill_itself_in_the_middle_of_a_step(loop: SimLoop) -> None:
    ran: list[str] = []

    async def victim(process: SimProcess) -> None:
        process.kill()
        await asyncio.sleep(0)
        ran.append("went on")

    process = SimProcess(loop, "victim")
    process.spawn(victim(process))
    await asyncio.sleep(5)
    assert ran == []


async def test_a_paused_process_catches_up_in_order(loop: SimLoop) -> None:
    seen: list[tuple[int, float]] = []

    async def ticks() -> None:
        for number in range(4):
            await asyncio.sleep(1)
            seen.append((number, loop.time()))

    process = SimProcess(loop, "zombie")
    task = process.spawn(ticks())
    await asyncio.sleep(1.5)
    process.pause()
    await asyncio.sleep(30)
    assert [number for number, _ in seen] == [0]
    process.resume()
    await task
    assert [number for number, _ in seen] == [0, 1, 2, 3]
    assert seen[1][1] == pytest.approx(31.5)


WORLD = """
import asyncio
from simulation.world.network import SimNetwork
from simulation.world.loop import SimLoop, SimProcess

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def talk(host, count):
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: asyncio.StreamReaderProtocol(reader), host, 7)
    for number in range(count):
        transport.write(b"x" * (number + 1))
        await reader.readexactly(number + 1)
    transport.close()

async def main(loop):
    server = SimProcess(loop, "server")
    async def serve():
        await asyncio.get_running_loop().create_server(Echo, "server", 7)
    await server.spawn(serve())
    names = {f"client-{n}" for n in range(8)}
    await asyncio.gather(*(SimProcess(loop, name).spawn(talk("server", 20)) for name in sorted(names)))

with SimLoop(seed=SEED) as loop:
    SimNetwork(loop)
    loop.run(main(loop))
    print(loop.digest, loop.time())
"""


def run_world(seed: int, hash_seed: int) -> str:
    return subprocess.run(
        [sys.executable, "-c", WORLD.replace("SEED", str(seed))],
        env={"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": ":".join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_one_seed_gives_one_trace_under_any_hash_seed() -> None:
    first = run_world(7, hash_seed=1)
    assert first == run_world(7, hash_seed=2)
    assert first != run_world(8, hash_seed=1)
