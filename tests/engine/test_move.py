"""A topic of the embedded engine moves to Apache Pulsar by a mirror, and keeps the order of its keys."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from anabranch import AsyncAdminClient, AsyncClient
from simulation.harness.process import BrokerProcess
from simulation.harness.pulsar.control import ControlServer
from tests.harness.pulsar import EngineAddresses

KEYS = 20
TOPIC = "moved"
MIRROR_S = 300.0

pytestmark = [pytest.mark.long, pytest.mark.real_time, pytest.mark.timeout(900)]


@pytest.fixture
def control(small_engine: EngineAddresses, tmp_path: Path) -> Iterator[ControlServer]:
    server = ControlServer(
        tmp_path, 7, http_url=small_engine.http_url, zookeeper_url=small_engine.zookeeper_url
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


async def send(url: str, numbers: Sequence[int]) -> None:
    async with AsyncClient(url) as client:
        producer = await client.create_producer(TOPIC)
        for number in numbers:
            await producer.enqueue(b"%d" % number, key=f"key-{number % KEYS}")
        await producer.flush()


async def received(url: str, subscription: str, count: int) -> dict[str, list[int]]:
    """The numbers of each key, as a subscription receives them."""
    found: dict[str, list[int]] = defaultdict(list)
    async with AsyncClient(url) as client:
        consumer = await client.subscribe_stream(TOPIC, subscription, initial_position="earliest")
        for _ in range(count):
            message = await consumer.receive(timeout=60)
            found[str(message.key)].append(int(message.data))
            await consumer.acknowledge_cumulative(message)
    return found


def numbers(first: int, end: int) -> dict[str, list[int]]:
    """The numbers of each key, in the order of their sends."""
    return {f"key-{key}": list(range(first + key, end, KEYS)) for key in range(KEYS)}


def mirror(here: str, there: str, state: Path) -> None:
    words = ["pipeline", "mirror", TOPIC, TOPIC, "--url", here, "--to-url", there, "--state", str(state)]
    words += ["--master", "local[2]", "--once"]
    command = [sys.executable, "-m", "anabranch.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MIRROR_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


async def test_a_topic_moves_to_the_cluster_with_the_order_of_its_keys(
    control: ControlServer, tmp_path: Path
) -> None:
    there = f"pulsar://127.0.0.1:{control.port}"
    with BrokerProcess(tmp_path / "data", {"auto_scale.enabled": "false"}) as broker:
        async with AsyncAdminClient(broker.http_url) as admin, AsyncAdminClient(control.http_url) as cluster:
            await admin.create_topic(TOPIC)
            await cluster.create_topic(TOPIC, segments=3)
            await send(broker.url, range(2000))
            await admin.split(TOPIC, 0)
            await send(broker.url, range(2000, 4000))
            mirror(broker.url, there, tmp_path / "state")
            await admin.merge(TOPIC, [1, 2])
            await send(broker.url, range(4000, 5000))
            # The producers of the old broker are done; the last step copies what is left.
            mirror(broker.url, there, tmp_path / "state")
            for subscription in ("all", "new"):
                await cluster.create_subscription(TOPIC, subscription)
            await cluster.skip_all(TOPIC, "new")
            await send(there, range(5000, 6000))
            await cluster.split(TOPIC, 0)
            await send(there, range(6000, 7000))
    assert await received(there, "all", 7000) == numbers(0, 7000)
    assert await received(there, "new", 2000) == numbers(5000, 7000)
