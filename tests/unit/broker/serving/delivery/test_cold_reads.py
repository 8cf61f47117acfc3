"""All types of subscription on a log that keeps few entries in memory."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from anabranch.ledger.memory import MemoryLog
from anabranch.ledger.storage import Entry
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, settle, value_of

KINDS = [
    pb.CommandSubscribe.Exclusive,
    pb.CommandSubscribe.Failover,
    pb.CommandSubscribe.Shared,
    pb.CommandSubscribe.Key_Shared,
]
COUNT = 400
KEYS = 15


@pytest.fixture(params=[0.3, 1.0])
def forgetful(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter's memory fails with some probability, so that reads must wait."""
    remembered, each = MemoryLog.read_cached, MemoryLog.read_each_cached
    rng = random.Random(7)

    def read_cached(
        self: MemoryLog, ordinal: int, max_entries: int, max_bytes: int
    ) -> Sequence[Entry] | None:
        if ordinal < self.extent.next_ordinal and rng.random() < request.param:
            return None
        return remembered(self, ordinal, max_entries, max_bytes)

    async def read(self: MemoryLog, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        return remembered(self, ordinal, max_entries, max_bytes)

    def read_each_cached(self: MemoryLog, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry] | None:
        return None if rng.random() < request.param else each(self, ordinals, max_bytes)

    async def read_each(self: MemoryLog, ordinals: Sequence[int], max_bytes: int) -> Sequence[Entry]:
        return each(self, ordinals, max_bytes)

    for made in (read_cached, read, read_each_cached, read_each):
        monkeypatch.setattr(MemoryLog, made.__name__, made)


class FaultyConsumers:
    """Consumers of one type that ask for entries again, leave entries unacknowledged, and get lost."""

    def __init__(self, brokers: Brokers, kind: int, rng: random.Random) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        """By key the numbers of its messages, in the order of their first delivery."""
        self.acked: Counter[bytes] = Counter()
        self.several = kind in (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared)
        self.connected: dict[int, WireClient] = {}
        self._world = brokers
        self._kind = kind
        self._rng = rng
        self._ids = itertools.count(1)

    async def join(self) -> None:
        client, number = await self._world.connect(), next(self._ids)
        permits = self._rng.choice([1, 7, 50])
        await client.subscribe(kind=self._kind, consumer_id=number, permits=permits)
        self.connected[number] = client

    async def lose_one(self) -> None:
        gone = self._rng.choice(list(self.connected))
        self.connected.pop(gone).close()
        await settle()

    async def take_all(self) -> None:
        await settle()
        for consumer_id, client in list(self.connected.items()):
            got = client.has(Delivery)
            client.inbox.clear()
            for delivery in got:
                self._take(consumer_id, client, delivery)
            if got:
                client.flow(len(got), consumer_id)

    def _take(self, consumer_id: int, client: WireClient, delivery: Delivery) -> None:
        key, text = value_of(delivery).decode().split(":")
        if int(text) not in self.seen[key]:
            self.seen[key].append(int(text))
        if self.several and self._rng.random() < 0.1:
            again = pb.MessageIdData(ledgerId=delivery.ledger, entryId=delivery.entry)
            client.send(
                pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id, message_ids=[again])
            )
        elif self._rng.random() < 0.9:
            client.acknowledge(delivery, consumer_id=consumer_id)
            self.acked[value_of(delivery)] += 1


async def publish_and_consume(brokers: Brokers, consumers: FaultyConsumers, rng: random.Random) -> None:
    producer = await brokers.connect()
    await producer.producer()
    await consumers.join()
    for sequence in range(COUNT):
        key = sequence % KEYS
        producer.publish(b"%d:%d" % (key, sequence), sequence, key=str(key))
        if sequence % 20 == 0:
            await consumers.take_all()
            if consumers.several and len(consumers.connected) < 4:
                await consumers.join()
            elif rng.random() < 0.3:
                await consumers.lose_one()
                if not consumers.connected:
                    await consumers.join()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("forgetful")
async def test_everything_is_delivered_in_order_through_losses_and_redeliveries(
    brokers: Brokers, kind: int
) -> None:
    rng = random.Random(kind)
    consumers = FaultyConsumers(brokers, kind, rng)
    await publish_and_consume(brokers, consumers, rng)
    subscription = brokers[0].logs.served[0].subscriptions["sub"]
    for _ in range(300):
        await consumers.take_all()
        if subscription.backlog == 0:
            break
        if rng.random() < 0.2:
            await consumers.lose_one()
            await consumers.join()
    assert subscription.backlog == 0
    assert len(consumers.acked) == COUNT
    if kind != pb.CommandSubscribe.Shared:
        for name, numbers in consumers.seen.items():
            assert numbers == sorted(numbers), f"first deliveries of key {name} are in order"
