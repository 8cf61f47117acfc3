"""Real brokers for the process tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulation.harness.process import BrokerProcess
from tests.process.small_disk import SmallDisk

DISK_BYTES = 24 * 2**20


def pytest_itemcollected(item: pytest.Item) -> None:
    """Real processes need real time."""
    item.add_marker(pytest.mark.real_time)


MakeBroker = Callable[..., BrokerProcess]


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[MakeBroker]:
    """Makes brokers that are gone when the test ends, however it ends."""
    made: list[BrokerProcess] = []

    def make(name: str = "data", descriptors: int | None = None, **settings: object) -> BrokerProcess:
        made.append(BrokerProcess(tmp_path / name, settings, descriptors=descriptors))
        return made[-1]

    yield make
    for process in made:
        process.kill()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "small", DISK_BYTES)
    yield disk
    disk.close()
