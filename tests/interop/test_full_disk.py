"""The official `pulsar-client` on a full disk: its consumer goes on, and its producer follows by itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pulsar

from simulation.harness.process import BrokerProcess
from tests.process.small_disk import SmallDisk

PAYLOAD = bytes(20_000)
PATIENCE_MS = 60_000


def read_up_to(consumer: Any, last: int) -> list[int]:
    """Numbers in the order of their first deliveries; the client may lose its acknowledgements once."""
    found: dict[int, None] = {}
    while last not in found:
        message = consumer.receive(timeout_millis=PATIENCE_MS)
        consumer.acknowledge(message)
        found[int(message.data().split()[0])] = None
    return list(found)


def test_consumer_reads_on_and_producer_resumes(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "small", 24 * 2**20)
    broker = BrokerProcess(tmp_path / "small" / "data")
    broker.entrance = disk.entrance
    try:
        broker.start()
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer("orders", send_timeout_millis=5 * PATIENCE_MS)
        earliest = pulsar.InitialPosition.Earliest
        consumer = client.subscribe("orders", "s", initial_position=earliest)
        for number in range(20):
            producer.send(b"%d " % number + PAYLOAD)
        disk.fill()
        while "accepts no entries" not in broker.log_text:
            time.sleep(0.1)
        results: list[Any] = []
        answered = threading.Semaphore(0)

        def done(result: Any, _message_id: Any) -> None:
            results.append(result)
            answered.release()

        for number in range(20, 30):
            producer.send_async(b"%d " % number + PAYLOAD, done)
        assert read_up_to(consumer, 19) == list(range(20))
        assert results == []
        disk.free()
        for _ in range(10):
            assert answered.acquire(timeout=PATIENCE_MS / 1000)
        assert results == [pulsar.Result.Ok] * 10
        assert read_up_to(consumer, 29)[-10:] == list(range(20, 30))
        client.close()
        assert broker.stop() == 0
    finally:
        broker.kill()
        disk.close()
