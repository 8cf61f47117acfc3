"""Work of one connection that is spread over several turns of the event loop."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from anabranch.aio import TaskRegistry
from anabranch.broker.wire.turns import STEPS_PER_TURN, run_in_turns
from tests.harness.wire import settle


async def test_a_step_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    failing = {1, STEPS_PER_TURN + 1, 2 * STEPS_PER_TURN}
    done: list[int] = []

    def step(number: int) -> None:
        if number in failing:
            raise RuntimeError(f"step {number}")
        done.append(number)

    count = 3 * STEPS_PER_TURN
    with caplog.at_level(logging.CRITICAL + 1):
        run_in_turns([partial(step, number) for number in range(count)], TaskRegistry())
        await settle()
    assert done == [number for number in range(count) if number not in failing]
