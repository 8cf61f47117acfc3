from __future__ import annotations

import asyncio

import pytest

from anabranch.transport.turns import TURNS_AT_ONCE
from tests.harness.cluster import Brokers
from tests.harness.wire import settle

BATCH = 10
BATCHES = 6


@pytest.mark.brokers(dispatch_max_entries=BATCH)
async def test_subscriptions_with_a_long_backlog_take_turns(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.publish_all([b"%d" % number for number in range(BATCH * BATCHES)])
    for number in range(10 * TURNS_AT_ONCE):
        await client.subscribe(subscription=f"s{number}", consumer_id=number, permits=0)
    (log,) = brokers[0].logs.served
    subscriptions = list(log.subscriptions.values())
    for subscription in subscriptions:
        subscription.flow(next(iter(subscription.reading.consumers)), BATCH * BATCHES)
    delivered: list[int] = []
    for _ in range(200):
        before = sum(subscription.counters.messages_out for subscription in subscriptions)
        await asyncio.sleep(0)
        delivered.append(sum(subscription.counters.messages_out for subscription in subscriptions) - before)
    first, *rest = [count for count in delivered if count]
    assert first == len(subscriptions) * BATCH
    assert max(rest) <= TURNS_AT_ONCE * BATCH
    await settle()
    for subscription in subscriptions:
        assert subscription.counters.messages_out == BATCH * BATCHES
