"""Fixtures of real ZooKeeper and Pulsar processes; each is started once for all tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from simulation.harness.pulsar.cluster import BROKER_SETTINGS, PulsarCluster
from simulation.harness.pulsar.jars import LTS, PulsarJars, UnresolvedError
from simulation.harness.pulsar.standalone import PulsarStandalone
from simulation.harness.pulsar.zookeeper import ZookeeperServer


class EngineAddresses(NamedTuple):
    """The addresses that a control process needs."""

    url: str
    http_url: str
    zookeeper_url: str


def find_jars(version: str = LTS) -> PulsarJars:
    """The jars of a version; fails the test without them."""
    try:
        return PulsarJars.resolve(version)
    except UnresolvedError as error:
        pytest.fail(f"{error}; these tests need JDK 17 with Maven")


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """A ZooKeeper that no test stops, with short ticks."""
    server = ZookeeperServer(find_jars(), tmp_path_factory.mktemp("zookeeper"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def small_engine(
    zookeeper: ZookeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineAddresses]:
    """A standalone Pulsar, which has no ZooKeeper, and a ZooKeeper beside it; for short forms."""
    # Rates are measured often, so that tests of auto-scaling see them soon.
    rates = {"statsUpdateFrequencyInSecs": 2, "statsUpdateInitialDelayInSecs": 2}
    pulsar = PulsarStandalone(find_jars(), tmp_path_factory.mktemp("pulsar"), {**BROKER_SETTINGS, **rates})
    try:
        pulsar.start()
        yield EngineAddresses(pulsar.url, pulsar.http_url, f"{zookeeper.url}/anabranch")
    finally:
        pulsar.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    """ZooKeeper, three bookies and two brokers, for tests that kill and pause them."""
    with PulsarCluster(find_jars(), tmp_path_factory.mktemp("cluster")) as started:
        yield started
