"""Control processes over a Pulsar cluster in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from simulation.world.loop import SimLoop
from tests.harness.control_plane import ControlProcesses


@pytest.fixture(params=[1])
async def control(loop: SimLoop, request: pytest.FixtureRequest) -> AsyncIterator[ControlProcesses]:
    """Started control processes; a test changes their number by its parameter."""
    processes = ControlProcesses(loop, request.param)
    await processes.start_all()
    yield processes
    await processes.stop_all()
