"""Control processes over real Pulsar and ZooKeeper: the client suite under load, layout changes and kills."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from anabranch import AsyncAdminClient, AsyncClient
from anabranch.metadata.zookeeper.zookeeper_store import ZookeeperOptions
from simulation.harness.pulsar.cluster import PulsarCluster
from simulation.harness.pulsar.control import SESSION_S, ControlServer, control_servers
from simulation.harness.pulsar.server_process import ServerProcess
from tests.harness.admin_proxy import AdminProxy, TerminateTrap
from tests.harness.engine_load import EngineLoad, Fault
from tests.harness.pulsar import EngineAddresses

SEED = int(os.environ.get("ENGINE_SEED", "1"))
TRAP_S = 300.0
"""Within this time a leader terminates a segment."""

pytestmark = pytest.mark.real_time


class Controls:
    """Two control processes of one cluster."""

    def __init__(self, scratch: Path, engine: EngineAddresses, session_s: float = SESSION_S) -> None:
        self.servers = control_servers(scratch, engine.http_url, engine.zookeeper_url, session_s)

    @property
    def url(self) -> str:
        return "pulsar://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def admin_url(self) -> str:
        """The admin API of a process that lives."""
        return next(server.http_url for server in self.servers if server.running)

    def other_than(self, paused: list[ControlServer]) -> ControlServer:
        return next(server for server in self.servers if server not in paused)

    async def leader_of(self, topic: str, asked: ControlServer | None = None) -> ControlServer | None:
        """The process that leads a topic of the default namespace, according to a live process."""
        async with AsyncAdminClient(self.admin_url() if asked is None else asked.http_url) as admin:
            home = (await admin.topic_metadata(topic)).store
            owner = next((one for one in await admin.brokers() if home in one.stores), None)
        if owner is None:
            return None
        return next((one for one in self.servers if str(one.port) in str(owner.service_url)), None)

    def kill(self, number: int) -> Fault:
        return killed(self.servers[number])


def killed(server: ServerProcess, away_s: float = 0.5) -> Fault:
    """A fault: the process is killed, and starts again after a while."""

    async def fault() -> None:
        server.kill()
        await asyncio.sleep(away_s)
        server.launch()
        await asyncio.to_thread(server.wait_ready)

    return fault


def paused(server: ServerProcess, pause_s: float) -> Fault:
    """A fault: the process answers nothing for a while."""

    async def fault() -> None:
        server.pause()
        await asyncio.sleep(pause_s)
        server.resume()

    return fault


def killed_by_terminate(
    cluster: PulsarCluster, proxy: AdminProxy, delay_s: float, killed: list[str]
) -> Fault:
    """A fault: the broker that gets the next call to terminate a topic is killed this long afterwards."""

    def kill(address: str) -> None:
        killed.append(address)
        next(broker for broker in cluster.brokers if broker.http_url.endswith(address)).kill()

    async def fault() -> None:
        proxy.trap = trap = TerminateTrap(kill, delay_s)
        assert await asyncio.to_thread(trap.sprung.wait, TRAP_S)
        proxy.trap = None
        await asyncio.sleep(1.0)
        dead = next(broker for broker in cluster.brokers if not broker.running)
        dead.launch()
        await asyncio.to_thread(dead.wait_ready)

    return fault


@pytest.fixture(params=[SESSION_S])
def controls(
    small_engine: EngineAddresses, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Controls]:
    """Two processes; a test changes their sessions by its parameter."""
    with ExitStack() as stack:
        made = Controls(tmp_path, small_engine, request.param)
        for server in made.servers:
            stack.callback(server.stop)
            server.launch()
        for server in made.servers:
            server.wait_ready()
        yield made


@pytest.mark.timeout(300)
async def test_a_load_survives_layout_changes_and_kills_of_control_processes(
    controls: Controls, small_engine: EngineAddresses
) -> None:
    async with AsyncClient(controls.url) as client:
        load = EngineLoad(client, controls.admin_url, "short", SEED)
        load.pulsar_admin_url = small_engine.http_url
        await load.run(6_000, 2_000, [controls.kill(0), controls.kill(1)])
    assert load.faults == 2
    assert load.changes > 0


@pytest.mark.timeout(300)
async def test_a_paused_leader_is_replaced_and_begins_anew(controls: Controls) -> None:
    leader: list[ControlServer] = []

    async def pause_leader() -> None:
        first = await controls.leader_of("paused")
        assert first is not None
        leader.append(first)
        other = controls.other_than(leader)
        first.pause()
        while await controls.leader_of("paused", other) is not other:  # noqa: ASYNC110 - a probe
            await asyncio.sleep(0.1)
        first.resume()

    async with AsyncClient(controls.url) as client:
        load = EngineLoad(client, lambda: controls.other_than(leader).http_url, "paused", SEED)
        await load.run(2_000, 2_000, [pause_leader])
    assert load.changes > 0
    begun = "this process starts over, because its session was lost"
    while begun not in leader[0].log_text:  # noqa: ASYNC110 - a probe
        await asyncio.sleep(0.1)
    await asyncio.to_thread(leader[0].wait_ready)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("controls", [ZookeeperOptions().session_s], indirect=True)
@pytest.mark.parametrize("loss", ["killed", "paused"])
async def test_a_change_asked_of_another_process_is_made_by_the_next_leader(
    controls: Controls, loss: str
) -> None:
    topic = f"asked-{loss}"
    async with AsyncAdminClient(controls.admin_url()) as admin:
        await admin.create_topic(topic)
    leader = await controls.leader_of(topic)
    assert leader is not None
    if loss == "killed":
        leader.kill()
    else:
        leader.pause()
    async with AsyncAdminClient(controls.other_than([leader]).http_url) as admin:
        await admin.split(topic, 0)
        record = await admin.topic_metadata(topic)
    assert (record.epoch, sorted(record.segments)) == (1, [0, 1, 2])


@pytest.mark.timeout(300)
async def test_a_partitioned_topic_of_pulsar_becomes_scalable(controls: Controls) -> None:
    async with AsyncAdminClient(controls.admin_url()) as admin:
        # The control process redirects calls about classic topics to the cluster.
        await admin.call("PUT", "/admin/v2/persistent/public/default/old/partitions", body=2)
        await admin.call(
            "PUT", "/admin/v2/persistent/public/default/old/subscription/billing", body="earliest"
        )
    async with AsyncClient(controls.url) as client:
        before = await client.create_producer("persistent://public/default/old")
        for number in range(100):
            await before.enqueue(b"%d" % number, key=f"key-{number % 7}")
        await before.close()
        async with AsyncAdminClient(controls.admin_url()) as admin:
            await admin.migrate("old")
        after = await client.create_producer("topic://public/default/old")
        for number in range(100, 200):
            await after.enqueue(b"%d" % number, key=f"key-{number % 7}")
        await after.flush()
        consumer = await client.subscribe_stream("topic://public/default/old", "billing")
        found: dict[str, list[int]] = defaultdict(list)
        for _ in range(200):
            message = await consumer.receive(timeout=60)
            found[message.key or ""].append(int(message.value or b""))
            await consumer.acknowledge_cumulative(message)
    assert found == {f"key-{key}": list(range(key, 200, 7)) for key in range(7)}


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_load_survives_the_kill_of_every_kind_of_process(
    cluster: PulsarCluster, tmp_path: Path
) -> None:
    controls = Controls(tmp_path, EngineAddresses(cluster.url, cluster.http_url, cluster.zookeeper_url))
    for server in controls.servers:
        cluster.add(server)
    faults = [
        controls.kill(0),
        killed(cluster.bookies[0]),
        paused(cluster.zookeeper, 3.0),
        killed(cluster.brokers[0], 1.0),
        controls.kill(1),
        killed(cluster.zookeeper, 1.0),
        killed(cluster.brokers[1], 1.0),
        paused(controls.servers[0], SESSION_S + 2),
    ]
    async with AsyncClient(controls.url) as client:
        load = EngineLoad(client, controls.admin_url, "long", SEED)
        load.pulsar_admin_url = cluster.http_url
        await load.run(40_000, 5_000, faults)
    assert load.faults == len(faults)
    # Others were interrupted; their leaders finished or undid them, as the end of the load shows.
    assert load.changes > 0
    assert load.in_flight_max == 5_000


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_load_survives_the_kill_of_an_owner_during_a_terminate(
    cluster: PulsarCluster, tmp_path: Path
) -> None:
    def living() -> list[str]:
        return [urlsplit(broker.http_url).netloc for broker in cluster.brokers if broker.running]

    with AdminProxy(living) as proxy:
        server = ControlServer(tmp_path, 0, http_url=proxy.url, zookeeper_url=f"{cluster.zookeeper.url}/trap")
        cluster.add(server)
        terminated: list[str] = []
        faults = [killed_by_terminate(cluster, proxy, delay_s, terminated) for delay_s in (0.0, 0.005, 0.02)]
        async with AsyncClient(server.url) as client:
            load = EngineLoad(client, lambda: server.http_url, "trap", SEED)
            load.pulsar_admin_url = cluster.http_url
            await load.run(20_000, 5_000, faults)
    assert len(terminated) == load.faults == len(faults)
    assert load.changes > 0
