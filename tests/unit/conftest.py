"""The cluster of a test, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from anabranch.ledger.memory import MemoryStorage
from anabranch.ledger.storage import SegmentStorage
from anabranch.testing.plugin import marker_options
from anabranch.testing.simloop import SimLoop
from tests.harness.cluster import World


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Callable[[], SegmentStorage]:
    """The factory of the storages of `world`: the option `storage` of the marker `world`, else memory."""
    factory: Callable[[], SegmentStorage] = marker_options(request.node, "world").get(
        "storage", MemoryStorage
    )
    return factory


@pytest.fixture
async def world(
    loop: SimLoop, storage: Callable[[], SegmentStorage], request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    """Started brokers; the marker `world` changes their number and settings."""
    world = World(loop, **{**marker_options(request.node, "world"), "storage": storage})
    await world.start_all()
    yield world
    await world.stop_all()
