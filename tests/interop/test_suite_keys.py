"""Keys of our producer and of Pulsar's own V5 producer on one topic of Apache Pulsar 5.0.0-M1."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess

import pytest

from tests.interop.building import JVM
from tests.interop.engines import PulsarServers, pulsar_engine

# The first run downloads some 300 MB.
pytestmark = [pytest.mark.timeout(900), pytest.mark.real_time]


async def test_a_key_goes_to_one_segment_from_both_clients(
    pulsar_servers: PulsarServers, classpath: str
) -> None:
    engine = pulsar_engine(pulsar_servers)
    topic = await engine.new_topic("keys", 8)
    theirs = await asyncio.to_thread(sent_by_java, classpath, engine.service_url, topic, 20)
    assert len(theirs) == 20
    assert len(set(theirs.values())) > 3, "the keys lie in several segments"
    async with engine.client() as client:
        producer = await client.create_producer(topic)
        ours = {key: (await producer.send(b"ours", key=key)).segment for key in theirs}
        assert ours == theirs
        consumer = await client.subscribe_stream(topic, "s", initial_position="earliest")
        found = [await consumer.receive(timeout=30) for _ in range(40)]
    seen = {(message.key, message.id.segment) for message in found}
    assert seen == set(theirs.items()), "each key was read from one segment"


def sent_by_java(classpath: str, url: str, topic: str, count: int) -> dict[str, int]:
    """Send messages with different keys; returns the segment of each key."""
    command = ["java", *JVM, "-cp", classpath, "anabranch.Role", "blocking", url, topic, str(count)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    return {event["key"]: segment_in(event["id"]) for event in events if event["event"] == "sent"}


def segment_in(id_: str) -> int:
    found = re.fullmatch(r"MessageIdV5\{segment=(\d+), .*\}", id_)
    assert found, id_
    return int(found[1])
