"""A real broker for the official clients, real servers of Pulsar, and the engines of the client suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.harness.process import BrokerProcess
from simulation.harness.pulsar.cluster import BROKER_SETTINGS, PulsarCluster
from simulation.harness.pulsar.standalone import PulsarStandalone
from simulation.harness.pulsar.zookeeper import ZookeeperServer
from tests.harness.pulsar import EngineAddresses, find_jars
from tests.interop.building import java_classpath
from tests.interop.engines import (
    CONTROL,
    CONTROL_CLUSTER,
    CONTROL_SCALABLE,
    ENGINES,
    SCALABLE,
    PulsarServers,
    RunningEngine,
    anabranch_engine,
    control_engine,
    pulsar_engine,
)
from tests.interop.features import FAST, FORMS
from tests.spark.conftest import spark

__all__ = ["spark"]


@pytest.fixture(params=[1] if FAST else [1, 2], ids=FORMS.get)
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {"workers": request.param}) as process:
        yield process


@pytest.fixture(scope="session")
def classpath() -> str:
    """The classpath of the Java side."""
    return java_classpath()


@pytest.fixture(scope="session")
def pulsar_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarServers]:
    """Servers of Apache Pulsar, which the tests share."""
    servers = PulsarServers(tmp_path_factory.mktemp)
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def small_scalable(
    zookeeper: ZookeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineAddresses]:
    """A standalone Pulsar that has scalable topics of its own, and a ZooKeeper beside it."""
    pulsar = PulsarStandalone(find_jars(SCALABLE), tmp_path_factory.mktemp("scalable"), BROKER_SETTINGS)
    try:
        pulsar.start()
        yield EngineAddresses(pulsar.url, pulsar.http_url, f"{zookeeper.url}/scalable")
    finally:
        pulsar.kill()


@pytest.fixture(scope="session", params=ENGINES)
def engine(
    request: pytest.FixtureRequest, pulsar_servers: PulsarServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    """Each engine of the client suite; its modules share it."""
    if request.param == "anabranch":
        with anabranch_engine(tmp_path_factory.mktemp("engine")) as started:
            yield started
    elif request.param == CONTROL:
        below = request.getfixturevalue("small_engine")
        with control_engine(tmp_path_factory.mktemp("engine"), below) as started:
            yield started
    elif request.param == CONTROL_SCALABLE:
        below = request.getfixturevalue("small_scalable")
        with control_engine(tmp_path_factory.mktemp("engine"), below) as started:
            yield started
    elif request.param == CONTROL_CLUSTER:
        # The suite has a cluster of its own, which no other test kills.
        with PulsarCluster(find_jars(), tmp_path_factory.mktemp("cluster")) as cluster:
            below = EngineAddresses(cluster.url, cluster.http_url, cluster.zookeeper_url)
            with control_engine(tmp_path_factory.mktemp("engine"), below) as started:
                yield started
    else:
        yield pulsar_engine(pulsar_servers)
