"""A broker, or several, for clients on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.testing.network import SimNetwork
from anabranch.testing.plugin import marker_options
from anabranch.testing.simloop import SimLoop
from tests.unit.broker.cluster import Brokers
from tests.unit.client.world import World


@pytest.fixture
async def world(loop: SimLoop, request: pytest.FixtureRequest) -> World:
    """One started broker; the marker `world` changes its settings."""
    world = World(loop, **marker_options(request.node, "world"))
    await world.start()
    return world


@pytest.fixture
async def brokers(loop: SimLoop, request: pytest.FixtureRequest) -> AsyncIterator[Brokers]:
    """Started brokers; the marker `brokers` changes their number and settings."""
    SimNetwork(loop)
    brokers = Brokers(**{"count": 2, **marker_options(request.node, "brokers")})
    await brokers.start_all()
    yield brokers
    await brokers.stop_all()
