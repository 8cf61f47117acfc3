"""The control plane that the tests of the controller run on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from simulation.plugin import marker_options
from simulation.world.loop import SimLoop
from tests.harness.control import MANUAL, ControlPlane


@pytest.fixture
async def plane(loop: SimLoop, request: pytest.FixtureRequest) -> AsyncIterator[ControlPlane]:
    """A control plane without a process; the marker `plane` changes its settings."""
    changes = marker_options(request.node, "plane")
    settings = changes.pop("settings", MANUAL)
    plane = ControlPlane(loop, replace(settings, **changes))
    yield plane
    await plane.stop()
