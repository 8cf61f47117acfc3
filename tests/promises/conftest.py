"""The installed package, and brokers that run from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.promises.installed import ROOT, InstalledBroker, InstalledPackage, install


def pytest_itemcollected(item: pytest.Item) -> None:
    """The first test also waits for the wheel, which takes half a minute on an idle machine."""
    item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def package() -> InstalledPackage:
    return install(ROOT / "build" / "promises")


@pytest.fixture(scope="session")
def broker(package: InstalledPackage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledBroker]:
    """The broker that most tests share; each uses topics of its own."""
    broker = InstalledBroker(package, tmp_path_factory.mktemp("shared"))
    yield broker.start()
    broker.kill()


@pytest.fixture
def make_broker(package: InstalledPackage, tmp_path: Path) -> Iterator[Callable[..., InstalledBroker]]:
    """Makes brokers for tests that kill, stop or configure them."""
    made: list[InstalledBroker] = []

    def make(*options: str) -> InstalledBroker:
        folder = tmp_path / f"broker-{len(made)}"
        folder.mkdir()
        made.append(InstalledBroker(package, folder, *options))
        return made[-1]

    yield make
    for broker in made:
        broker.kill()
