from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from anabranch.transport.turns import (
    SLICE_BYTES_FIRST,
    SLICE_BYTES_MAX,
    SLICE_BYTES_MIN,
    SLICE_COMMANDS,
    TURNS_AT_ONCE,
    Turns,
    next_slice,
)


async def test_few_turns_are_taken_before_other_work_comes() -> None:
    turns = Turns()
    log: list[str] = []
    for number in range(2 * TURNS_AT_ONCE):
        turns.later(lambda number=number: log.append(str(number)))  # type: ignore[misc]
    asyncio.get_running_loop().call_soon(log.append, "other")
    assert turns.busy
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first, second = ([str(n) for n in range(at, at + TURNS_AT_ONCE)] for at in (0, TURNS_AT_ONCE))
    assert log == [*first, "other", *second]
    assert not turns.busy


async def test_an_action_that_comes_again_waits_behind_the_others() -> None:
    turns = Turns()
    log: list[str] = []

    def busy() -> None:
        log.append("busy")
        if len(log) < 20:
            turns.later(busy)

    turns.later(busy)
    for _ in range(5):
        turns.later(lambda: log.append("other"))
    for _ in range(30):
        await asyncio.sleep(0)
    assert log[:7] == ["busy", *["other"] * 5, "busy"]


async def test_a_failing_action_does_not_stop_the_others() -> None:
    turns = Turns()
    log: list[str] = []
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))

    def fail() -> None:
        raise RuntimeError("no")

    actions: list[Callable[[], None]] = [fail, lambda: log.append("next")]
    for action in actions:
        turns.later(action)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == ["next"]
    assert len(failures) == 1


@pytest.mark.parametrize(
    ("slice_bytes", "read_bytes", "commands", "expected"),
    [
        pytest.param(4096, 4096, 0, 8192, id="part of a large frame"),
        pytest.param(4096, 4096, 4 * SLICE_COMMANDS, 1024, id="many small commands"),
        pytest.param(4096, 1000, 10, 4096, id="all was read"),
        pytest.param(4096, 4096, SLICE_COMMANDS, 4096, id="just right"),
        pytest.param(SLICE_BYTES_MIN, SLICE_BYTES_MIN, 100 * SLICE_COMMANDS, SLICE_BYTES_MIN, id="least"),
        pytest.param(SLICE_BYTES_MAX, SLICE_BYTES_MAX, 1, SLICE_BYTES_MAX, id="most"),
    ],
)
def test_a_slice_holds_about_as_many_commands_as_it_should(
    slice_bytes: int, read_bytes: int, commands: int, expected: int
) -> None:
    assert next_slice(slice_bytes, read_bytes, commands) == expected


@pytest.mark.parametrize("command_bytes", [13, 60, 1000, 100_000])
def test_slices_settle_for_any_size_of_commands(command_bytes: int) -> None:
    size = SLICE_BYTES_FIRST
    for _ in range(20):
        size = next_slice(size, size, size // command_bytes)
    commands = size // command_bytes
    assert commands <= SLICE_COMMANDS
    assert 4 * commands >= SLICE_COMMANDS or size == SLICE_BYTES_MAX
