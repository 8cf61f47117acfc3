"""The limit on waiting messages: callers get their turns in order."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.client.produce.memory import Memory


async def test_waiting_producers_get_memory_in_order() -> None:
    memory = Memory(10)
    memory.charge(11)
    turns: list[int] = []

    async def take(number: int) -> None:
        await memory.wait()
        turns.append(number)

    tasks = [asyncio.ensure_future(take(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert memory.full
    memory.release(5)
    await asyncio.gather(*tasks)
    assert turns == [0, 1, 2]
    assert not memory.full


async def test_a_newcomer_does_not_overtake_waiting_producers() -> None:
    memory = Memory(10)
    memory.charge(11)
    tasks = [asyncio.ensure_future(memory.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    memory.release(6)
    assert memory.full, "one is still in line"
    await asyncio.gather(*tasks)
    assert not memory.full


async def test_room_is_there_again_when_bytes_are_given_back() -> None:
    memory = Memory(10)
    memory.charge(10)
    assert not memory.full
    memory.charge(1)
    assert memory.full
    task = asyncio.ensure_future(memory.wait())
    await asyncio.sleep(0)
    memory.release(6)
    assert not task.done(), "its turn has come, but it has not taken it yet"
    await task
    assert not memory.full


async def test_a_cancelled_wait_passes_its_turn_on() -> None:
    memory = Memory(10)
    memory.charge(11)
    first, second = asyncio.ensure_future(memory.wait()), asyncio.ensure_future(memory.wait())
    await asyncio.sleep(0)
    memory.release(5)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
