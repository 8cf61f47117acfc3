"""Topics that a leader makes and removes at a real Pulsar, and the start and end of its process."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from anabranch import AsyncAdminClient, AsyncClient
from anabranch.aio import TaskRegistry
from anabranch.control.drain_polls import DrainPolls
from anabranch.control.homes import NUMBERS
from anabranch.control.leased_admin import LeasedAdmin
from anabranch.control.pulsar_admin import PulsarAdmin
from anabranch.control.pulsar_segments import PulsarSegments
from anabranch.control.topic_marks import NewTopics
from anabranch.errors import ServiceNotReadyError
from anabranch.metadata.zookeeper import ZookeeperStore
from anabranch.model.names import Place, TopicName
from anabranch.model.pulsar_names import pulsar_topic
from anabranch.model.ranges import FULL
from simulation.harness.ports import free_port
from simulation.harness.pulsar.control import SESSION_S, ControlServer, session
from simulation.harness.pulsar.zookeeper import ZookeeperServer
from tests.harness.pulsar import EngineAddresses, find_jars

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]


@pytest.fixture
async def pulsar(small_engine: EngineAddresses) -> AsyncIterator[PulsarAdmin]:
    admin = PulsarAdmin([small_engine.http_url])
    yield admin
    await admin.close()


def policy(engine: EngineAddresses, topic: TopicName, name: str) -> Any:
    """A policy of one topic, as Pulsar reports it."""
    path = f"persistent/{topic.namespace_name}/{topic.local}/{name}"
    with urllib.request.urlopen(f"{engine.http_url}/admin/v2/{path}", timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


async def until(found: Any, good: Any, within_s: float = 60.0) -> Any:
    """Look again until the answer is good."""
    deadline_s = time.monotonic() + within_s
    while not good(seen := await found()):
        assert time.monotonic() < deadline_s, seen
        await asyncio.sleep(0.2)
    return seen


@pytest.mark.parametrize("done", [1, 2, 3])
async def test_a_segment_that_was_half_made_gets_all_its_policies(
    small_engine: EngineAddresses, pulsar: PulsarAdmin, done: int
) -> None:
    name = TopicName("topic", "public", "default", f"half-{time.time_ns()}")
    place, left = Place(name.segment_name(FULL, 0), 0), done

    def fail() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ServiceNotReadyError("the session ended")

    first = PulsarSegments(LeasedAdmin(pulsar, fail), DrainPolls(TaskRegistry()))
    with pytest.raises(ServiceNotReadyError):
        await first.create(place, {}, 1)
    second = PulsarSegments(pulsar, DrainPolls(TaskRegistry()), made=NewTopics(retention_minutes=90))
    assert await second.create(place, {}, 2) == "open"
    topic = pulsar_topic(place.name)

    async def policies() -> list[Any]:
        return [
            await asyncio.to_thread(policy, small_engine, topic, name)
            for name in ("retention", "deduplicationEnabled")
        ]

    # Pulsar shows a policy a moment after the call.
    await until(policies, lambda seen: seen[1] and (seen[0] or {}).get("retentionTimeInMinutes") == 90)
    assert await second.create(place, {}, 2) == "open"


async def test_sealed_segments_are_pruned_and_a_deleted_topic_leaves_nothing(
    small_engine: EngineAddresses, pulsar: PulsarAdmin, tmp_path: Path
) -> None:
    name = f"pruned-{time.time_ns()}"
    server = ControlServer(
        tmp_path,
        0,
        http_url=small_engine.http_url,
        zookeeper_url=f"{small_engine.zookeeper_url}-pruned",
        more=("--set", "segment_retention_s=1", "--set", "auto_scale_interval_s=1"),
    )

    async def topics() -> list[str]:
        found = await pulsar.topics("public/default")
        return sorted(topic.rpartition("segment-")[2] for topic in found if f"/{name}." in topic)

    try:
        server.launch()
        await asyncio.to_thread(server.wait_ready)
        async with AsyncAdminClient(server.http_url) as admin:
            await admin.create_topic(name)
            async with AsyncClient(server.url) as client:
                consumer = await client.subscribe_stream(name, "s", initial_position="earliest")
                producer = await client.create_producer(name)
                await producer.send(b"before", key="k")
                await admin.split(name, 0)
                await producer.send(b"after", key="k")
                await asyncio.sleep(3)
                assert await topics() == ["0000-7fff-1", "0000-ffff-0", "8000-ffff-2"], "it is not read yet"
                for _ in range(2):
                    await consumer.acknowledge_cumulative(await consumer.receive(timeout=60))
                await until(topics, lambda seen: seen == ["0000-7fff-1", "8000-ffff-2"])
            await admin.delete_topic(name)
        await until(topics, lambda seen: seen == [])
    finally:
        server.stop()


async def test_a_process_waits_for_zookeeper_and_a_signal_ends_the_wait(
    small_engine: EngineAddresses, tmp_path: Path
) -> None:
    nobody = f"zk://127.0.0.1:{free_port()}/anabranch"
    waiting = ControlServer(tmp_path, 0, http_url=small_engine.http_url, zookeeper_url=nobody)
    waiting.launch()
    try:

        async def log() -> str:
            return waiting.log_text

        await until(log, lambda text: "waiting for the metadata store" in text)
        assert waiting.running
        waiting.terminate()

        async def running() -> bool:
            return waiting.running

        await until(running, lambda alive: not alive)
    finally:
        waiting.stop()


async def test_a_process_that_started_before_zookeeper_serves_when_it_is_there(
    small_engine: EngineAddresses, tmp_path: Path
) -> None:
    late = ZookeeperServer(find_jars(), tmp_path)
    server = ControlServer(tmp_path, 0, http_url=small_engine.http_url, zookeeper_url=f"{late.url}/anabranch")
    try:
        server.launch()
        await asyncio.sleep(5)
        late.start()
        await asyncio.to_thread(server.wait_ready)
    finally:
        server.stop()
        late.stop()


async def test_a_signal_ends_a_process_that_has_lost_its_session(
    small_engine: EngineAddresses, tmp_path: Path
) -> None:
    url = f"{small_engine.zookeeper_url}-ended"
    store = ZookeeperStore(url)
    server = ControlServer(
        tmp_path, 0, http_url=small_engine.http_url, zookeeper_url=url, more=session(SESSION_S)
    )
    try:
        server.launch()
        await asyncio.to_thread(server.wait_ready)
        assert await store.children(NUMBERS) == ["0"]
        server.pause()
        await until(partial(store.children, NUMBERS), lambda numbers: numbers == [])
        # The process sees the signal and the end of its session together.
        server.terminate()

        async def running() -> bool:
            return server.running

        await until(running, lambda alive: not alive)
        assert "starts over" not in server.log_text
    finally:
        server.stop()
        await store.close()
