"""`anabranch lane` at a real broker: a stuck key on a classic topic, and a stuck bucket of a scalable one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from anabranch import AsyncClient, AsyncStreamConsumer
from anabranch.cli.main import main
from anabranch.model.hashing import sticky_hash
from simulation.harness.process import BrokerProcess

CLASSIC = "persistent://public/default/held"
Run = Callable[..., tuple[int, str]]
STUCK, FREE = "k0", "k3"
"""Keys in the lower and the upper half of the hashes."""


@pytest.fixture
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    settings = {"lane_after_s": 0.1, "lane_relief": "false", "scalableTopicAutoScaleEnabled": "false"}
    return make_broker(**settings).start()


@pytest.fixture
def run(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; returns the exit code and all that it printed."""
    monkeypatch.setenv("ANABRANCH_ADMIN_URL", broker.http_url)
    monkeypatch.setenv("COLUMNS", "200")

    def run_words(text: str) -> tuple[int, str]:
        code = main(text.split())
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run_words


def wait_for_lanes(run: Run, words: str, held: int) -> list[dict[str, Any]]:
    until_s = time.monotonic() + 20
    while True:
        code, text = run(f"lane list {words} --json")
        assert code == 0, text
        lanes: list[dict[str, Any]] = json.loads(text)
        if sum(lane["heldEntries"] for lane in lanes) >= held or time.monotonic() > until_s:
            return lanes
        time.sleep(0.05)


def key_shared(client: Any, hashes: tuple[int, int], **options: Any) -> Any:
    policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[hashes])
    return client.subscribe(CLASSIC, "s", pulsar.ConsumerType.KeyShared, key_shared_policy=policy, **options)


def test_a_stuck_key_of_pulsar_client_is_seen_peeked_and_skipped(broker: BrokerProcess, run: Run) -> None:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    stuck = key_shared(client, (0, 32767), receiver_queue_size=1, consumer_name="hanging")
    free = key_shared(client, (32768, 65535))
    producer = client.create_producer(CLASSIC)
    for number in range(50):
        for key in (STUCK, FREE):
            producer.send_async(b"%s:%d" % (key.encode(), number), None, partition_key=key)
    producer.flush()
    for number in range(50):
        message = free.receive(10_000)
        assert message.data() == b"%s:%d" % (FREE.encode(), number)
        free.acknowledge(message)

    slot = sticky_hash(STUCK.encode())
    (lane,) = wait_for_lanes(run, f"{CLASSIC} s", 40)
    held = lane["heldEntries"]
    assert lane["lane"] == str(slot)
    assert lane["waitsFor"] == "hanging"
    code, text = run(f"lane list {CLASSIC} s")
    assert (code, str(slot) in text, "hanging" in text, STUCK in text) == (0, True, True, True)
    code, text = run(f"lane show {CLASSIC} s {slot}")
    assert (code, f"{held} entries" in text, "what to do" in text) == (0, True, True)
    code, text = run(f"lane peek {CLASSIC} s {slot} --count 2")
    assert (code, f"{STUCK}:{50 - held}" in text, f"{STUCK}:{50 - held + 2}" in text) == (0, True, False)

    code, text = run(f"lane release {CLASSIC} s {slot}")
    assert (code, "hanging" in text) == (1, True)
    code, text = run(f"lane skip {CLASSIC} s {slot} --count 3")
    assert (code, "--yes" in text) == (1, True), "no terminal to ask at"
    assert run(f"lane skip {CLASSIC} s {slot} --count 3 --yes") == (0, f"skipped 3 entries of lane {slot}\n")
    broker.kill()
    broker.start()
    values: dict[int, None] = {}
    while len(values) < 47:
        message = stuck.receive(20_000)
        values[int(message.data().partition(b":")[2])] = None
        stuck.acknowledge(message)
    assert [*values] == [*range(50 - held), *range(50 - held + 3, 50)], "a skip is durable"
    assert wait_for_lanes(run, f"{CLASSIC} s", 0) == []
    client.close()


def test_a_stuck_bucket_of_a_scalable_topic_is_seen_over_all_segments(
    broker: BrokerProcess, run: Run
) -> None:
    assert run("topic create orders --segments 2")[0] == 0

    async def stall() -> None:
        async with AsyncClient(broker.url) as client:
            readers = [
                await client.subscribe_stream("orders", "s", name=f"r{number}", receiver_queue_size=1)
                for number in range(4)
            ]
            others = [asyncio.create_task(acknowledge_all(reader)) for reader in readers[1:]]
            producer = await client.create_producer("orders", batching=False)
            for number in range(400):
                await producer.send(b"%d" % number, key=f"key-{number % 40}")
            await asyncio.to_thread(look_at_lanes, run)
            for task in others:
                task.cancel()

    asyncio.run(stall())


async def acknowledge_all(reader: AsyncStreamConsumer[bytes]) -> None:
    async for message in reader:
        await reader.acknowledge_cumulative(message)


def look_at_lanes(run: Run) -> None:
    lanes = wait_for_lanes(run, "orders s", 1)
    assert {lane["waitsFor"] for lane in lanes} == {"r0"}
    lane = lanes[0]["lane"]
    code, text = run(f"lane peek orders s {lane} --json")
    assert (code, json.loads(text)[0]["key"]) == (0, lanes[0]["sampleKey"])
    code, text = run(f"lane show orders s {lanes[0]['slot']}")
    assert (code, "segment too" in text) == (1, True)
    code, text = run("topic why orders")
    assert (code, f"lane {lane}" in text) == (0, True)
