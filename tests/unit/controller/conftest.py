"""The control plane that the tests of the controller run on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.testing.plugin import marker_options
from anabranch.testing.simloop import SimLoop
from tests.harness.control import MANUAL, Plant


@pytest.fixture
def plant(loop: SimLoop, request: pytest.FixtureRequest) -> Plant:
    """A control plane without a process; the marker `plant` changes its settings."""
    changes = marker_options(request.node, "plant")
    settings = changes.pop("settings", MANUAL)
    return Plant(loop, replace(settings, **changes))
