"""Keys that wait for an operator or for their delivery time, in a real broker that is killed meanwhile."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta

import pulsar

from anabranch import AsyncClient, Backoff, Batching, DeadLetter, Message
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.model.names import TopicName

from .conftest import MakeBroker

NAME = TopicName.parse("topic://public/default/parked")
KEYS = [f"key-{n}" for n in range(20)]
BAD = "key-0"


async def produce(url: str, numbers: range) -> None:
    async with AsyncClient(url) as client:
        producer = await client.create_producer(str(NAME), batching=Batching(max_messages=5))
        for number in numbers:
            for key in KEYS:
                await producer.enqueue(b"%d" % number, key=key)
        await producer.flush()


class FailingHandlers:
    """Handlers of a group of consumers; message 3 of the bad key fails until `repaired`."""

    def __init__(self) -> None:
        self.repaired = False
        self.handled: dict[str | None, dict[int, None]] = defaultdict(dict)

    async def __call__(self, message: Message[bytes]) -> None:
        number = int(message.data)
        if message.key == BAD and number == 3 and not self.repaired:
            raise ValueError("broken")
        mine = self.handled[message.key]
        assert number in mine or number == len(mine), f"{message.key}: {number} after {list(mine)}"
        mine[number] = None

    def have(self, count: int, keys: int) -> bool:
        return sum(len(numbers) >= count for numbers in self.handled.values()) >= keys


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


async def test_a_parked_key_stays_parked_through_a_kill_and_is_released_in_order(
    make_broker: MakeBroker,
) -> None:
    broker = make_broker(lane_after_s=0.1, scalableTopicAutoScaleEnabled="false").start()
    work, stop = FailingHandlers(), asyncio.Event()
    letters = DeadLetter(1, policy="park")
    async with AsyncClient(broker.url) as client:
        # Two consumers of one segment share it by buckets, and only then the broker has lanes.
        runs = []
        for name in ("a", "b"):
            consumer = await client.subscribe_queue(
                str(NAME), "s", initial_position="earliest", order="key", name=name, dead_letter=letters
            )
            runs.append(asyncio.ensure_future(consumer.run(work, retry=Backoff(0.01, 0.01), stop=stop)))
        await produce(broker.url, range(10))
        with AdminClient(broker.http_url) as admin:
            await wait_until(lambda: plain(admin.lanes(NAME, "s")) and work.have(10, 10))
        broker.kill()
        broker.start()
        work.repaired = True
        await produce(broker.url, range(10, 15))
        with AdminClient(broker.http_url) as admin:
            await wait_until(lambda: work.have(15, 10))
            (lane,) = plain(admin.lanes(NAME, "s"))
            assert (lane["reason"], lane["note"]) == ("parked", "ValueError: broken")
            assert list(work.handled[BAD]) == [0, 1, 2]
            admin.release_lane(NAME, "s", str(lane["lane"]))
            await wait_until(lambda: work.have(15, len(KEYS)))
            await wait_until(lambda: not plain(admin.lanes(NAME, "s")))
        stop.set()
        await asyncio.gather(*runs)


def test_delays_of_keys_survive_a_kill(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    topic = "persistent://public/default/delayed"
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared)
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"a0", partition_key="a", deliver_after=timedelta(seconds=6))
    producer.send(b"a1", partition_key="a")
    producer.send(b"b0", partition_key="b")
    message = consumer.receive(5000)
    assert message.data() == b"b0"
    consumer.acknowledge(message)
    broker.kill()
    client.close()
    broker.start()
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared)
    received = []
    while b"a1" not in received:
        message = consumer.receive(10_000)
        consumer.acknowledge(message)
        received.append(message.data())
    # An acknowledgement may be lost in the kill.
    assert [value for value in received if value != b"b0"] == [b"a0", b"a1"]
    client.close()
