"""A simulated network for every test of this folder."""

from __future__ import annotations

import pytest

from simulation.world.loop import SimLoop
from simulation.world.network import SimNetwork


@pytest.fixture(autouse=True)
def network(loop: SimLoop) -> SimNetwork:
    return SimNetwork(loop)
