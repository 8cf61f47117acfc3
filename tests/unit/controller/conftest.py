"""The control plane that the tests of the controller run on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from anabranch.testing.plugin import marker_options
from anabranch.testing.simloop import SimLoop
from tests.harness.control import MANUAL, Plant


@pytest.fixture
async def plant(loop: SimLoop, request: pytest.FixtureRequest) -> AsyncIterator[Plant]:
    """A control plane without a process; the marker `plant` changes its settings."""
    changes = marker_options(request.node, "plant")
    settings = changes.pop("settings", MANUAL)
    plant = Plant(loop, replace(settings, **changes))
    yield plant
    await plant.stop()
