"""Generic asyncio helpers."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.aio import KeyedLocks, together


async def test_side_by_side_the_first_failure_ends_the_others_and_is_raised_plainly() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")

    async def fail() -> None:
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        await together([slow(), fail()])
    assert ended == ["slow"]


async def test_side_by_side_results_keep_their_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await together(after(n) for n in (3, 1, 2)) == [3, 1, 2]


async def test_locks_are_per_key_and_forgotten_when_free() -> None:
    locks = KeyedLocks()
    trace: list[str] = []

    async def hold(key: str, name: str) -> None:
        async with locks.held(key):
            trace.append(f"{name} in")
            await asyncio.sleep(0)
            trace.append(f"{name} out")

    await asyncio.gather(hold("x", "1"), hold("x", "2"), hold("y", "3"))
    assert trace.index("1 out") < trace.index("2 in")
    assert trace.index("3 in") < trace.index("1 out")
    assert len(locks) == 0
