"""A control process scales topics by itself, has metrics, and tells clients the address of its settings."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from anabranch import AdminClient, AsyncAdminClient, AsyncClient
from anabranch.admin.models.scalable import AutoScaleOverride
from simulation.harness.ports import free_port
from simulation.harness.pulsar.control import ControlServer
from tests.harness.pulsar import EngineAddresses

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

ADVERTISED = "localhost"


@pytest.fixture(scope="module")
def control(
    small_engine: EngineAddresses, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlServer]:
    """A control process that listens on an address and tells another one."""
    server = ControlServer(
        tmp_path_factory.mktemp("serving"),
        9,
        http_url=small_engine.http_url,
        zookeeper_url=f"{small_engine.zookeeper_url}-serving",
        more=(
            *("--pulsar", small_engine.url, "--host", "127.0.0.1"),
            *("--set", f"advertised_host={ADVERTISED}", "--set", "auto_scale_interval_s=0.5"),
        ),
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


async def segments(admin: AsyncAdminClient, topic: str) -> int:
    record = await admin.topic_metadata(topic)
    return sum(one.state == "ACTIVE" for one in record.segments.values())


async def test_a_segment_splits_by_the_rate_that_pulsar_measures(control: ControlServer) -> None:
    async with AsyncAdminClient(control.http_url) as admin, AsyncClient(control.url) as client:
        for name in ("busy", "idle"):
            await admin.create_topic(name)
            policy = AutoScaleOverride(
                enabled=True,
                max_segments=2,
                split_cooldown_seconds=0.1,
                split_msg_rate_in_threshold=20.0,
                merge_msg_rate_in_threshold=0.0,
            )
            await admin.set_auto_scale_policy(name, policy)
        producer = await client.create_producer("busy")
        async with asyncio.timeout(120):
            number = 0
            while await segments(admin, "busy") == 1:
                # All at once, so that a slow machine reaches the rate, too.
                some = range(number, number + 200)
                await producer.send_many([b"%d" % one for one in some], keys=[f"key-{one}" for one in some])
                number = some.stop
        assert await segments(admin, "busy") == 2
        assert await segments(admin, "idle") == 1


def test_metrics_have_the_segments_of_led_topics(control: ControlServer) -> None:
    with AdminClient(control.http_url) as admin:
        admin.create_topic("measured", segments=3)
    until_s = time.monotonic() + 60
    found: list[str] = []
    while not found and time.monotonic() < until_s:
        with urllib.request.urlopen(f"{control.http_url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith("anabranch_segments") and "measured" in line]
        time.sleep(0.2)
    active = [line for line in found if "active" in line.lower()]
    assert [float(line.rpartition(" ")[2]) for line in active] == [3.0]


async def test_a_control_process_tells_the_address_that_it_advertises(control: ControlServer) -> None:
    async with AsyncAdminClient(control.http_url) as admin:
        (broker,) = await admin.brokers()
        assert broker.service_url == f"pulsar://{ADVERTISED}:{control.port}"
    async with AsyncClient(f"pulsar://{ADVERTISED}:{control.port}") as client:
        producer = await client.create_producer("advertised")
        await producer.send(b"hello")


def test_a_pulsar_that_does_not_answer_ends_the_start(small_engine: EngineAddresses) -> None:
    nothing = f"pulsar://127.0.0.1:{free_port()}"
    words = ["control", "--pulsar", nothing, "--pulsar-admin", small_engine.http_url]
    words += ["--metadata", small_engine.zookeeper_url]
    command = [sys.executable, "-m", "anabranch.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"no server of {nothing} answers" in done.stderr
