"""The cluster that other tests kill and pause: it serves, it survives, and it leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from anabranch.metadata.zookeeper import ZookeeperStore
from simulation.harness.ports import free_port
from simulation.harness.pulsar.cluster import PulsarBroker, PulsarCluster
from simulation.harness.pulsar.server_process import STOP_S, ServerProcess, answers
from tests.harness.pulsar import EngineAddresses

PARENT = """\
import sys, time
from pathlib import Path
from simulation.harness.pulsar.server_process import ServerProcess
server = ServerProcess("sleep", Path(sys.argv[1]), ["sleep", "600"], lambda: True)
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def until(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    until_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until_s, "did not come true in time"
        time.sleep(0.05)


def state(pid: int) -> str:
    """The state of a process as Linux tells it; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def request(method: str, url: str) -> bytes:
    """The answer of the admin API; every broker sends its callers to the owner of a topic."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        if error.code != 307:
            raise
        return request(method, error.headers["Location"])


def owner(cluster: PulsarCluster, topic: str) -> PulsarBroker:
    url = f"{cluster.brokers[0].http_url}/lookup/v2/topic/persistent/public/default/{topic}"
    found = json.loads(request("GET", url))["brokerUrl"]
    return next(broker for broker in cluster.brokers if broker.url == found)


def test_no_outgoing_connection_takes_the_port_of_a_server() -> None:
    outgoing, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    ports = [free_port() for _ in range(100)]
    assert len(set(ports)) == 100
    assert max(ports) < int(outgoing)


def test_a_server_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            until(lambda: name(pid) == "sleep")
        finally:
            parent.kill()
    until(lambda: state(pid) in ("", "Z"))


def test_a_paused_server_still_stops(tmp_path: Path) -> None:
    server = ServerProcess("sleep", tmp_path, ["sleep", "600"], lambda: True)
    server.start()
    pid = server.pid
    # The tether replaces itself by the command.
    until(lambda: name(pid) == "sleep")
    server.pause()
    until(lambda: state(pid) == "T")
    began_s = time.monotonic()
    server.stop()
    assert state(pid) == ""
    assert time.monotonic() - began_s < STOP_S, "it was not killed"
    assert not server.running


def test_a_server_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    server = ServerProcess("broken", tmp_path, ["sh", "-c", "echo no such thing; exit 1"], lambda: False)
    with pytest.raises(RuntimeError, match="no such thing"):
        server.start()


@pytest.mark.long
def test_a_standalone_pulsar_serves_beside_a_zookeeper(small_engine: EngineAddresses) -> None:
    assert answers(f"{small_engine.http_url}/admin/v2/brokers/health")
    assert small_engine.zookeeper_url.startswith("zk://127.0.0.1:")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_messages_survive_the_kill_of_a_bookie_and_of_a_broker(cluster: PulsarCluster) -> None:
    request("PUT", f"{cluster.brokers[0].http_url}/admin/v2/persistent/public/default/t")
    client = pulsar.Client(cluster.url, operation_timeout_seconds=60)
    producer = client.create_producer("persistent://public/default/t", send_timeout_millis=60_000)
    for number in range(10):
        producer.send(b"%d" % number)
    cluster.bookies[0].kill()
    for number in range(10, 20):
        producer.send(b"%d" % number)
    cluster.bookies[0].start()
    victim = owner(cluster, "t")
    victim.kill()
    for number in range(20, 30):
        producer.send(b"%d" % number)
    reader = client.create_reader("persistent://public/default/t", pulsar.MessageId.earliest)
    found = [int(reader.read_next(60_000).data()) for _ in range(30)]
    client.close()
    assert found == list(range(30))
    victim.start()
    assert answers(f"{victim.http_url}/admin/v2/brokers/health")


@pytest.mark.long
@pytest.mark.real_time
async def test_our_records_live_beside_those_of_pulsar(cluster: PulsarCluster) -> None:
    store = ZookeeperStore(cluster.zookeeper_url)
    assert await store.children("/") == []
    assert await store.put("/a", b"x") == 0
    assert await store.children("/") == ["a"]
    await store.close()


def processes_with(text: str) -> list[int]:
    """Processes whose command contains a text, other than this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # The process ended meanwhile.
            found += [int(entry.name)] if text.encode() in command else []
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_command_of_make_cluster_runs_until_ctrl_c_and_leaves_no_process(tmp_path: Path) -> None:
    scratch = tmp_path / "cluster"
    command = [sys.executable, "-m", "simulation.harness.pulsar.run", "--scratch", str(scratch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        controls = []
        try:
            for line in running.stdout:
                controls += [line.split()[2]] if line.startswith("  control") else []
                if len(controls) == 2:
                    break
            assert [answers(f"{url}/admin/v2/brokers/health") for url in controls] == [True, True]
            assert len(processes_with(str(scratch))) >= 7
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(120) == 0
    assert processes_with(str(scratch)) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_stopped_cluster_leaves_no_process(cluster: PulsarCluster) -> None:
    pids = [process.pid for process in cluster.processes()]
    cluster.brokers[1].pause()
    cluster.stop()
    assert [state(pid) for pid in pids] == [""] * 6
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], signal.SIGCONT)
