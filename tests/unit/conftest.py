"""The cluster and the gate of a test, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from anabranch.ledger.memory import MemoryStorage
from anabranch.ledger.storage import SegmentStorage
from simulation.plugin import marker_options
from simulation.world.loop import SimLoop
from tests.harness.cluster import Brokers
from tests.harness.gates import TestedGate


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Callable[[], SegmentStorage]:
    """The factory of the storages of `brokers`: the option `storage` of the marker `brokers`, else memory."""
    factory: Callable[[], SegmentStorage] = marker_options(request.node, "brokers").get(
        "storage", MemoryStorage
    )
    return factory


@pytest.fixture
async def brokers(
    loop: SimLoop, storage: Callable[[], SegmentStorage], request: pytest.FixtureRequest
) -> AsyncIterator[Brokers]:
    """Started brokers; the marker `brokers` changes their number and settings."""
    brokers = Brokers(loop, **{**marker_options(request.node, "brokers"), "storage": storage})
    await brokers.start_all()
    yield brokers
    await brokers.stop_all()


@pytest.fixture
def gate(loop: SimLoop) -> TestedGate:
    """A gate; a test calls `use` with its settings."""
    return TestedGate(loop)
