"""The thread that does blocking work for an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from anabranch.errors import AlreadyClosedError
from anabranch.ledger.disks.work_thread import WorkThread

pytestmark = pytest.mark.real_time


def noting(done: list[int], number: int, gate: threading.Event) -> Callable[[], int]:
    def work() -> int:
        gate.wait(10)
        done.append(number)
        return number

    return work


async def begun(thread: WorkThread, count: int) -> tuple[list[int], threading.Event, list[asyncio.Task[int]]]:
    """Pieces of work that wait for a gate; the numbers of those that are done, the gate, and the calls."""
    done: list[int] = []
    gate = threading.Event()
    calls = [asyncio.ensure_future(thread.run(noting(done, number, gate))) for number in range(count)]
    await asyncio.sleep(0)
    return done, gate, calls


async def test_work_is_done_in_order_in_one_thread() -> None:
    thread = WorkThread("worker", "closed")
    done, gate, calls = await begun(thread, 20)
    gate.set()
    assert await asyncio.gather(*calls) == done == [*range(20)]
    names = {await thread.run(lambda: threading.current_thread().name) for _ in range(3)}
    assert names == {"worker"}
    thread.close()


async def test_an_error_of_the_work_is_raised_and_the_thread_goes_on() -> None:
    thread = WorkThread("worker", "closed")
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await thread.run(lambda: 7) == 7
    thread.close()


async def test_the_work_of_a_cancelled_call_is_done_nevertheless() -> None:
    thread = WorkThread("worker", "closed")
    done, gate, calls = await begun(thread, 3)
    for call in calls[:2]:
        call.cancel()
    gate.set()
    assert await calls[2] == 2
    assert done == [0, 1, 2]
    thread.close()


async def test_closing_waits_for_the_work_and_refuses_more() -> None:
    thread = WorkThread("worker", "the disk is closed")
    done, gate, calls = await begun(thread, 1)
    gate.set()
    thread.close()
    assert done == [0]
    assert await calls[0] == 0
    with pytest.raises(AlreadyClosedError, match="the disk is closed"):
        await thread.run(lambda: 2)


def test_a_thread_outlives_the_loop_of_a_caller_that_gave_up() -> None:
    thread = WorkThread("worker", "closed")
    done: list[int] = []
    gate = threading.Event()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(thread.run(noting(done, 1, gate)), 0.01)

    asyncio.run(give_up())
    gate.set()
    assert asyncio.run(thread.run(lambda: 2)) == 2
    assert done == [1]
    thread.close()
