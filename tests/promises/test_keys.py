"""README: a key is never reordered, stuck keys delay no others as far as promised, nothing gets stuck."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.promises.installed import InstalledBroker, children, result, wait_until

MakeBroker = Callable[..., InstalledBroker]


def active(broker: InstalledBroker, topic: str) -> list[int]:
    """The active segments of a topic, in the order of their ranges."""
    _, text = broker.request("GET", f"/admin/v2/scalable/public/default/{topic}")
    segments = json.loads(text)["segments"].values()
    found = [one for one in segments if one["state"] == "ACTIVE"]
    return [one["segmentId"] for one in sorted(found, key=lambda one: one["hashRange"]["start"])]


TRAFFIC = """
import random
async def main():
    async with AsyncClient(url) as client:
        consumer = await client.subscribe_stream("orders", "s", initial_position="earliest")
        producer = await client.create_producer("orders", send_timeout=60)
        last, stop, wrong, received = {}, asyncio.Event(), [], 0

        async def receive():
            nonlocal received
            while not (stop.is_set() and received >= sent):
                for message in await consumer.receive_many(1000, timeout=1):
                    number = int(message.data)
                    # After a crash a message may come again; a new number must be the next of its key.
                    if number > last.get(message.key, -1) + 1:
                        wrong.append([message.key, last.get(message.key, -1), number])
                    elif number == last.get(message.key, -1) + 1:
                        last[message.key] = number
                        received += 1
                    await consumer.acknowledge_cumulative(message)

        sent, next_of = 0, {}
        receiving = asyncio.ensure_future(receive())
        loop = asyncio.get_running_loop()
        ended = loop.run_in_executor(None, __import__("sys").stdin.readline)
        print("under way", flush=True)
        while not ended.done():
            key = f"key-{random.randrange(100)}"
            await producer.enqueue(b"%d" % next_of.get(key, 0), key=key)
            next_of[key] = next_of.get(key, 0) + 1
            sent += 1
            if sent % 50 == 0:
                await asyncio.sleep(0.01)
        await producer.flush(timeout=60)
        stop.set()
        async with asyncio.timeout(60):
            await receiving
        print(json.dumps([sent > 500, received == sent, wrong[:5]]))
asyncio.run(main())
"""


def test_a_key_keeps_its_order_through_splits_merges_a_crash_and_reconnects(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    program = broker.program(TRAFFIC)
    assert program.stdout is not None
    assert program.stdout.readline() == "under way\n"
    broker.tell("topic", "split", "orders", "0")
    first, second = active(broker, "orders")
    broker.tell("topic", "split", "orders", str(second), "--parts", "3")
    broker.restart()
    broker.tell("topic", "merge", "orders", *map(str, active(broker, "orders")))
    broker.tell("topic", "split", "orders", *map(str, active(broker, "orders")))
    assert first not in active(broker, "orders")
    assert result(program, 120) == [True, True, []]


@pytest.mark.parametrize("step", ["planned", "sealed", "committed"])
def test_a_split_that_a_crash_interrupted_is_finished_by_the_next_start(
    make_broker: MakeBroker, step: str
) -> None:
    broker = make_broker().start()
    broker.tell("produce", "orders", "--key", "alice", "--value", "tea")
    broker.restart(ANABRANCH_FAILPOINTS=f"split.{step}=kill")
    assert broker.ask("topic", "split", "orders", "0").returncode != 0
    broker.restart()
    wait_until(lambda: len(active(broker, "orders")) == 2, "two active segments")
    broker.tell("produce", "orders", "--key", "alice", "--value", "more")
    assert (
        broker.tell("consume", "orders", "--from", "earliest", "--count", "2") == "alice\ttea\nalice\tmore\n"
    )


def test_load_splits_a_topic(make_broker: MakeBroker) -> None:
    """More stream consumers than buckets of a busy segment would also split it; here load alone does."""
    broker = make_broker("--set", "auto_scale_interval_s=1", "--set", "load_report_interval_s=1").start()
    broker.tell("topic", "create", "orders")
    broker.request(
        "POST",
        "/admin/v2/scalable/public/default/orders/autoScalePolicy",
        {"splitMsgRateInThreshold": 200, "mergeMsgRateInThreshold": 100, "splitCooldownSeconds": 1},
    )
    program = broker.program("""
        import sys
        with Client(url) as client:
            producer = client.create_producer("orders")
            while time.sleep(0.01) is None:
                producer.send_many([b"tea"] * 50, keys=[f"key-{n}" for n in range(50)])
        """)
    wait_until(lambda: len(active(broker, "orders")) > 1, "a split by load", 60)
    program.kill()
    program.communicate()
    why = broker.tell("topic", "why", "orders")
    assert "split" in why


def test_topic_why_gives_decisions_with_reasons_for_and_against(make_broker: MakeBroker) -> None:
    broker = make_broker("--set", "auto_scale_interval_s=1").start()
    broker.tell("produce", "orders", "--value", "tea")
    explain = ("topic", "why", "orders", "--json")
    (decision, *_) = wait_until(lambda: json.loads(broker.tell(*explain))["decisions"], "a decision")
    assert decision["action"]
    assert decision["reason"] or decision["against"]
    assert broker.tell("topic", "why", "orders").strip()


BUCKETS = """
import sys
async def main():
    async with AsyncClient(url) as client:
        idle = await client.subscribe_stream("orders", "s", receiver_queue_size=1)
        busy = await client.subscribe_stream("orders", "s")
        producer = await client.create_producer("orders", batching=False)
        # Both share the one segment once each has received a message.
        async def shared():
            while not (await idle.receive_many(1, timeout=0.2) and await busy.receive_many(1, timeout=0.2)):
                await producer.send_many([b"x"] * 40, keys=[f"key-{n}" for n in range(40)])
        async with asyncio.timeout(40):
            await shared()
        print("under way", flush=True)
        received = set()
        async def receive():
            async for message in busy:
                received.add(int(message.data) if message.data.isdigit() else -1)
        receiving = asyncio.ensure_future(receive())
        for n in range(400):
            await producer.send(b"%d" % n, key=f"key-{n % 40}")
        await asyncio.to_thread(sys.stdin.readline)
        receiving.cancel()
        print(json.dumps(len(received - {-1})))
asyncio.run(main())
"""


def test_consumers_that_share_a_segment_do_not_wait_for_a_stuck_one(make_broker: MakeBroker) -> None:
    """Buckets of keys wait for the idle consumer; those of the other consumer go on."""
    broker = make_broker().start()
    program = broker.program(BUCKETS)
    assert program.stdout is not None
    assert program.stdout.readline() == "under way\n"
    lanes = wait_until(
        lambda: json.loads(broker.tell("lane", "list", "orders", "s", "--json")),
        "a lane of the idle consumer",
    )
    assert lanes[0]["heldEntries"] > 0
    received = result(program)
    assert 0 < received < 400


PUBLISH = """
with Client(url) as client:
    client.create_producer("orders").send_many([b"tea"] * 100, keys=[f"key-{n}" for n in range(100)])
"""


def test_workers_share_the_segments_and_replace_one_that_dies(make_broker: MakeBroker) -> None:
    broker = make_broker("--workers", "2").start()
    assert broker.ready == f"ready {broker.url} {broker.http_url}\n"
    broker.tell("topic", "create", "orders", "--segments", "4")
    stores = [one["stores"] for one in json.loads(broker.tell("brokers", "--json"))]
    assert len(stores) == 2
    assert all(stores)
    _, text = broker.request("GET", "/admin/v2/scalable/public/default/orders")
    assert len({one["store"] for one in json.loads(text)["segments"].values()}) == 2
    broker.run(PUBLISH)
    before = children(broker.pid)
    assert len(before) >= 2
    os.kill(before[-1], signal.SIGKILL)
    broker.run(PUBLISH)
    wait_until(lambda: len(json.loads(broker.tell("brokers", "--json"))) == 2, "two workers again")
    found = broker.tell("consume", "orders", "--from", "earliest", "--count", "200", "--json")
    assert len(found.splitlines()) == 200


def test_the_others_take_over_from_a_worker_that_hangs(make_broker: MakeBroker) -> None:
    broker = make_broker("--workers", "2").start()
    broker.tell("topic", "create", "orders", "--segments", "4")
    broker.run(PUBLISH)
    os.kill(children(broker.pid)[-1], signal.SIGSTOP)
    broker.run(PUBLISH)
    found = broker.tell("consume", "orders", "--from", "earliest", "--count", "200", "--json")
    assert len(found.splitlines()) == 200


KEY_SHARED = """
import json, sys, time
import pulsar

url, topic = sys.argv[1], "persistent://public/default/keys"
client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

def subscribe(size):
    kind = pulsar.ConsumerType.KeyShared
    return client.subscribe(topic, "s", consumer_type=kind, receiver_queue_size=size)

stuck, other = subscribe(1), subscribe(1000)
producer = client.create_producer(topic, batching_enabled=False)

def send(number):
    for key in range(20):
        producer.send(b"%d" % number, partition_key=f"key-{key}")

send(0)
# The first consumer takes one message and never acknowledges it; its queue takes one more.
held = stuck.receive(20_000).partition_key()
for number in range(1, 6):
    send(number)
received, deadline = {}, time.monotonic() + 60
while len(received) < 18 or any(len(numbers) < 5 for numbers in received.values()):
    assert time.monotonic() < deadline, received
    try:
        message = other.receive(1000)
    except pulsar.Timeout:
        continue
    received.setdefault(message.partition_key(), []).append(int(message.data()))
    other.acknowledge(message)
print(json.dumps([held, {key: numbers == sorted(numbers) for key, numbers in received.items()}]))
client.close()
"""


def test_a_stuck_key_of_a_key_shared_subscription_delays_only_itself(make_broker: MakeBroker) -> None:
    """The official client has one consumer that stands still, and another that then gets all other keys."""
    broker = make_broker().start()
    done = subprocess.run(
        [sys.executable, "-c", KEY_SHARED, broker.url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    held, in_order = json.loads(done.stdout.splitlines()[-1])
    assert held not in in_order
    assert set(in_order.values()) == {True}
    assert len(in_order) >= 18
