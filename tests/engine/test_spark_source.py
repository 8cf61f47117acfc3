"""The Spark source on a control process: restarts and cuts through splits and merges, and kills meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch import AdminClient
from anabranch.spark.service import close_sessions
from benchmarks.peers.pulsar_peer import PulsarServer
from simulation.harness.pulsar.cluster import PulsarCluster
from simulation.harness.pulsar.control import SESSION_S, ControlServer, session
from tests.harness.pulsar import EngineAddresses
from tests.interop.pulsar_topics import PulsarQuery, PulsarTopics, by_key, expected

pytestmark = pytest.mark.timeout(900)

Fault = Callable[[], None]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_sessions()


@pytest.fixture
def control(small_engine: EngineAddresses, tmp_path: Path) -> Iterator[ControlServer]:
    server = ControlServer(
        tmp_path,
        8,
        http_url=small_engine.http_url,
        zookeeper_url=small_engine.zookeeper_url,
        more=session(SESSION_S),
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


def follow(server: ControlServer, name: str, faults: tuple[Fault, Fault, Fault]) -> None:
    """Read a topic by a query that restarts, through splits and a merge; a fault after each change."""
    topics = PulsarTopics(PulsarServer(server.url, server.http_url))
    with AdminClient(server.http_url) as admin:
        admin.create_topic(name)
        topics.publish_by_ours(name, 0, 400)
        query = PulsarQuery(topics, name, maxOffsetsPerTrigger="120")
        query.step(replay=True)
        admin.split(name, 0)
        faults[0]()
        topics.publish_by_ours(name, 400, 800)
        query.restart()
        query.step(replay=True)
        admin.split(name, 1)
        faults[1]()
        topics.publish_by_ours(name, 800, 1000)
        admin.merge(name, [2, 4])
        faults[2]()
        topics.publish_by_ours(name, 1000, 1300)
    query.drain()
    assert by_key(query.rows) == expected(1300)
    assert {segment for _, _, segment, _ in query.rows} == {0, 1, 2, 3, 4, 5}
    assert by_key(topics.batch(name, ordering="key")) == expected(1300)


def killed(server: ControlServer) -> Fault:
    def fault() -> None:
        server.kill()
        server.start()

    return fault


def test_a_stream_follows_splits_and_merges_while_its_control_process_is_killed(
    control: ControlServer,
) -> None:
    follow(control, "streamed", (lambda: None, killed(control), lambda: None))


@pytest.mark.long
def test_a_stream_survives_kills_of_brokers_and_of_a_control_process(
    cluster: PulsarCluster, tmp_path: Path
) -> None:
    server = ControlServer(
        tmp_path,
        0,
        http_url=cluster.http_url,
        zookeeper_url=cluster.zookeeper_url,
        more=session(SESSION_S),
    )
    cluster.add(server)

    def kill_broker(number: int) -> Fault:
        def fault() -> None:
            cluster.brokers[number].kill()
            cluster.brokers[number].start()

        return fault

    follow(server, "streamed", (kill_broker(0), killed(server), kill_broker(1)))
