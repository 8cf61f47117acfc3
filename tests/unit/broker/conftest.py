"""Brokers on virtual time."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest

from anabranch.config import BrokerConfig
from anabranch.ledger.memory import MemoryStorage
from anabranch.ledger.storage import SegmentStorage
from anabranch.testing.network import SimNetwork
from anabranch.testing.plugin import marker_options
from anabranch.testing.simloop import SimLoop
from tests.unit.broker.cluster import Brokers
from tests.unit.broker.wire import World


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> SegmentStorage:
    """The storage of `world`: the option `storage` of its marker makes it, else it is in memory."""
    made: SegmentStorage = marker_options(request.node, "world").get("storage", MemoryStorage)()
    return made


@pytest.fixture
async def world(
    loop: SimLoop, storage: SegmentStorage, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    """A started broker; the marker `world` changes its settings."""
    SimNetwork(loop)
    settings = marker_options(request.node, "world")
    settings.pop("storage", None)
    world = World(dataclasses.replace(BrokerConfig(), **settings), storage)
    await world.broker.start()
    yield world
    await world.broker.stop()
    await world.store.close()


@pytest.fixture
async def brokers(loop: SimLoop, request: pytest.FixtureRequest) -> AsyncIterator[Brokers]:
    """Started brokers; the marker `brokers` changes their number and settings."""
    SimNetwork(loop)
    brokers = Brokers(**{"count": 2, **marker_options(request.node, "brokers")})
    await brokers.start_all()
    yield brokers
    await brokers.stop_all()
