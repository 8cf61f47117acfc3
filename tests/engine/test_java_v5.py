"""The published Java V5 client as a consumer through a control process over Pulsar 4."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch import AdminClient, Client, Schema
from simulation.harness.pulsar.control import ControlServer
from tests.harness.pulsar import EngineAddresses
from tests.interop.building import JVM, java_classpath

# The first run downloads some 60 MB.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

KEYS = 20
COUNT = 900


@pytest.fixture
def control(small_engine: EngineAddresses, tmp_path: Path) -> Iterator[ControlServer]:
    server = ControlServer(
        tmp_path, 5, http_url=small_engine.http_url, zookeeper_url=small_engine.zookeeper_url
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


def send(control: ControlServer, topic: str, numbers: range) -> None:
    with Client(control.url) as client:
        # The Java side reads strings, and Pulsar compares the schemas of both sides.
        producer = client.create_producer(topic, schema=Schema.string())
        for number in numbers:
            producer.send(str(number), key=f"key-{number % KEYS}")


@pytest.mark.parametrize("kind", ["stream", "checkpoint"])
def test_a_java_consumer_reads_in_order_through_splits(
    control: ControlServer, kind: str, tmp_path: Path
) -> None:
    topic = f"topic://public/default/java-{kind}"
    command = ["java", *JVM, "-cp", java_classpath(), "anabranch.Role", kind, control.url, topic]
    command.append("s" if kind == "stream" else "earliest")
    found: dict[str, list[int]] = defaultdict(list)
    with AdminClient(control.http_url) as admin, (tmp_path / "java.log").open("w") as log:
        admin.create_topic(topic)
        send(control, topic, range(300))
        reading = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert reading.stdout is not None
            received = 0
            for event in map(json.loads, reading.stdout):
                if event["event"] != "received":
                    continue
                found[event["key"]].append(int(event["value"]))
                received += 1
                if received in (300, 600):
                    admin.split(topic, 0 if received == 300 else 1)
                    send(control, topic, range(received, received + 300))
                if received == COUNT:
                    break
        finally:
            reading.kill()
            reading.communicate()
    assert found == {f"key-{key}": list(range(key, COUNT, KEYS)) for key in range(KEYS)}
