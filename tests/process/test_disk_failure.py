"""Real disks that fail: a full one stops publishing and nothing else, and an I/O error ends a worker."""

from __future__ import annotations

import resource
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from anabranch import Client
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.process.small_disk import SmallDisk
from tests.process.stored import keys_over_the_ring

MakeBroker = Callable[..., BrokerProcess]

PAYLOAD = bytes(20_000)
TOPIC = TopicName.parse("topic://public/default/orders")
PATIENCE_S = 60.0


def test_a_worker_whose_disk_fails_ends_and_its_successor_has_all_that_was_confirmed(
    make_broker: MakeBroker,
) -> None:
    broker = make_broker().start()
    confirmed: list[bytes] = []
    with Client(broker.url, operation_timeout=5) as client:
        producer = client.create_producer("topic", name="p", send_timeout=5, batching=False)
        confirmed.append(b"first")
        producer.send(b"first")
        # Every file may grow by little more; then writes fail with EFBIG, which no deletion heals.
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        with suppress(AnabranchError):
            for number in range(1000):
                payload = b"%d " % number + bytes(10_000)
                producer.send(payload)
                confirmed.append(payload)
        assert broker.wait(20) == 1
    assert "cannot be used any more" in broker.log_text
    broker.start()
    with Client(broker.url) as client:
        consumer = client.subscribe_stream("topic", "s", initial_position="earliest")
        found = [consumer.receive(timeout=10).value for _ in confirmed]
    assert found == confirmed


def fill_with_messages(client: Client, confirmed: list[bytes]) -> None:
    """Publish until the broker refuses."""
    producer = client.create_producer("orders", send_timeout=3, batching=False)
    with suppress(AnabranchError):
        for number in range(10_000):
            payload = b"%d " % number + PAYLOAD
            producer.send(payload, key=f"key-{number % 4}")
            confirmed.append(payload)
    assert len(confirmed) < 10_000, "the disk never became full"
    with suppress(AnabranchError):
        producer.close()


def consume(client: Client, topic: str, subscription: str, count: int) -> list[bytes]:
    """Receive and acknowledge this many messages from the beginning; returns them sorted."""
    consumer = client.subscribe_stream(topic, subscription, initial_position="earliest")
    found = []
    for _ in range(count):
        message = consumer.receive(timeout=PATIENCE_S)
        consumer.acknowledge_cumulative(message)
        found.append(message.data)
    consumer.close()
    return sorted(found)


def metrics(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_stops_publishing_and_nothing_else(
    make_broker: MakeBroker, disk: SmallDisk, workers: int
) -> None:
    broker = make_broker("small/data", workers=workers, lease_s=3)
    broker.entrance, broker.data_here = disk.entrance, disk.inside / "data"
    broker.start()
    confirmed: list[bytes] = []
    with Client(broker.url) as client, AdminClient(broker.http_url) as admin:
        admin.create_topic(TOPIC, 2 * workers)
        client.create_producer("spare", send_timeout=30).send(b"spare")
        fill_with_messages(client, confirmed)
        disk.fill()
        assert consume(client, "orders", "s", len(confirmed)) == sorted(confirmed)
        troubles = plain(admin.why(TOPIC))["troubles"]
        assert any("accepts no entries" in text for text in troubles.values()), troubles
        assert "anabranch_store_full" in metrics(broker)
        admin.create_topic(TopicName.parse("topic://public/default/made-on-a-full-disk"))
        if workers > 1:
            broker.kill_owner(1)
            broker.worker(1)
            assert consume(client, "orders", "after the takeover", len(confirmed)) == sorted(confirmed)
        disk.fill()
        assert disk.free_bytes == 0
        assert broker.stop() == 0

    broker.start()
    with Client(broker.url) as client, AdminClient(broker.http_url) as admin:
        assert consume(client, "spare", "s", 1) == [b"spare"], "a start on the full disk serves readers"
        assert consume(client, "orders", "later", len(confirmed)) == sorted(confirmed)
        admin.delete_topic(TOPIC, force=True)
        producer = client.create_producer("spare", send_timeout=PATIENCE_S)
        producer.send(b"after the deletion")
    assert broker.log_text.count("Traceback") == 0, broker.log_text[-4000:]


SLOW_SYNC = """
import os, threading, time
from anabranch import speedups

synced = os.fdatasync
compiled = speedups.SyncThread

def await_gate(fd):
    while os.path.exists({gate!r}) and "/stores/1/" in os.readlink(f"/proc/self/fd/{{fd}}"):
        time.sleep(0.05)

def fdatasync(fd):
    await_gate(fd)
    synced(fd)

class SlowThread:
    def __init__(self):
        self.thread = compiled()
        self.take, self.fileno, self.close = self.thread.take, self.thread.fileno, self.thread.close

    def give(self, fd, data):
        def slowly():
            await_gate(fd)
            self.thread.give(fd, data)
        threading.Thread(target=slowly).start()

os.fdatasync = fdatasync
if compiled is not None:
    speedups.SyncThread = SlowThread
"""
"""Slows the syncs of one store, of both forms of the thread that makes them."""


def keys_by_store(admin: AdminClient) -> dict[int, str]:
    """A key for each of the two stores that hold the halves of the topic."""
    segments = plain(admin.topic_stats(TOPIC))["segments"]
    keys = keys_over_the_ring(2)
    return {about["store"]: keys[about["hashRange"].startswith("8")] for about in segments.values()}


@pytest.mark.parametrize("speedups", ["on", "off"])
def test_a_disk_that_takes_seconds_for_a_sync_delays_its_own_store_only(
    make_broker: MakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speedups: str
) -> None:
    gate, patches = tmp_path / "gate", tmp_path / "patches"
    patches.mkdir()
    (patches / "sitecustomize.py").write_text(SLOW_SYNC.format(gate=str(gate)))
    monkeypatch.setenv("PYTHONPATH", str(patches))
    monkeypatch.setenv("ANABRANCH_SPEEDUPS", speedups)
    broker = make_broker(workers=2, lease_s=1.5).start()
    workers = [broker.worker(0), broker.worker(1)]
    with Client(broker.url) as client, AdminClient(broker.http_url) as admin:
        admin.create_topic(TOPIC, 2)
        keys = keys_by_store(admin)
        producer = client.create_producer(str(TOPIC), send_timeout=120)
        producer.send(b"stored", key=keys[1])
        gate.touch()
        waiting = producer.enqueue(b"waits for the disk", key=keys[1])
        deadline = time.monotonic() + 5
        sent = 0
        while time.monotonic() < deadline:
            producer.send(b"goes on", key=keys[0])
            sent += 1
            time.sleep(0.05)
        assert not waiting.done()
        assert any("a sync for" in text for text in plain(admin.why(TOPIC))["troubles"].values())
        gate.unlink()
        waiting.result(PATIENCE_S)
        found = consume(client, str(TOPIC), "s", sent + 2)
        assert found == [*[b"goes on"] * sent, b"stored", b"waits for the disk"]
    assert [broker.worker(0), broker.worker(1)] == workers, "no lease was lost"
    assert "s for a sync" in broker.log_text
    assert broker.stop() == 0
