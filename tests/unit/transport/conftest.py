"""A simulated network for every test of this folder."""

from __future__ import annotations

import pytest

from anabranch.testing.network import SimNetwork
from anabranch.testing.simloop import SimLoop


@pytest.fixture(autouse=True)
def network(loop: SimLoop) -> SimNetwork:
    return SimNetwork(loop)
