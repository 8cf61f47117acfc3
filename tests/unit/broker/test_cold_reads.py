"""All types of subscription on a log that has forgotten most of what was written."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from anabranch.ledger.memory import MemoryLog
from anabranch.ledger.storage import Entry
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import World
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
    remembered = MemoryLog.read_cached
    rng = random.Random(7)

    def read_cached(
        self: MemoryLog, ordinal: int, max_entries: int, max_bytes: int
    ) -> Sequence[Entry] | None:
        if ordinal < self.extent.next_ordinal and rng.random() < request.param:
            return None
        return remembered(self, ordinal, max_entries, max_bytes)

    async def read(self: MemoryLog, ordinal: int, max_entries: int, max_bytes: int) -> Sequence[Entry]:
        return remembered(self, ordinal, max_entries, max_bytes)

    monkeypatch.setattr(MemoryLog, "read_cached", read_cached)
    monkeypatch.setattr(MemoryLog, "read", read)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("forgetful")
async def test_everything_is_delivered_in_order_through_losses_and_redeliveries(
    world: World, kind: int
) -> None:
    ordered = kind != pb.CommandSubscribe.Shared
    several = kind in (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared)

    rng = random.Random(kind)
    producer = await world.connect()
    await producer.producer()
    seen: dict[str, list[int]] = defaultdict(list)
    acked: Counter[bytes] = Counter()
    consumers: dict[int, WireClient] = {}
    number = 0

    async def join() -> None:
        nonlocal number
        number += 1
        client = await world.connect()
        await client.subscribe(kind=kind, consumer_id=number, permits=rng.choice([1, 7, 50]))
        consumers[number] = client

    def take(consumer_id: int, client: WireClient) -> None:
        got = client.has(Delivery)
        client.inbox.clear()
        for delivery in got:
            key, text = value_of(delivery).decode().split(":")
            if not seen[key] or int(text) not in seen[key]:
                seen[key].append(int(text))
            nack = several and rng.random() < 0.1
            if nack:
                again = pb.MessageIdData(ledgerId=delivery.ledger, entryId=delivery.entry)
                client.send(
                    pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id, message_ids=[again])
                )
            elif rng.random() < 0.9:
                client.acknowledge(delivery, consumer_id=consumer_id)
                acked[value_of(delivery)] += 1
        if got:
            client.flow(len(got), consumer_id)

    await join()
    for sequence in range(COUNT):
        key = sequence % KEYS
        producer.publish(b"%d:%d" % (key, sequence), sequence, key=str(key))
        if sequence % 20 == 0:
            await settle()
            for consumer_id, client in list(consumers.items()):
                take(consumer_id, client)
            if several and len(consumers) < 4:
                await join()
            elif consumers and rng.random() < 0.3:
                gone = rng.choice(list(consumers))
                consumers.pop(gone).close()
                await settle()
                if not consumers:
                    await join()
    subscription = world.broker.logs.served[0].subscriptions["sub"]
    for _ in range(300):
        await settle()
        for consumer_id, client in list(consumers.items()):
            take(consumer_id, client)
        if subscription.backlog == 0:
            break
        if rng.random() < 0.2:
            gone = rng.choice(list(consumers))
            consumers.pop(gone).close()
            await settle()
            await join()
    assert subscription.backlog == 0
    assert len(acked) == COUNT
    if ordered:
        for name, numbers in seen.items():
            assert numbers == sorted(numbers), f"first deliveries of key {name} are in order"
