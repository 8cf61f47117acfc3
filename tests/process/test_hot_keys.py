"""Hot keys with real brokers: a stuck key or consumer delays only itself, also through kill -9."""

from __future__ import annotations

import asyncio
import time
from itertools import chain, repeat

import pytest

from tests.harness.hot_keys import HotConsumer, HotPublisher, auto_split, half, keys_of_half, until

from .conftest import MakeBroker

pytestmark = pytest.mark.timed

LOW, HIGH = keys_of_half(False, 100), keys_of_half(True, 100)
HELD = 100_000
MEMORY_MAX = 48 * 2**20
"""For the journal, the entries kept aside and the lanes, which take a quarter of a byte for each entry."""


async def test_a_hanging_consumer_does_not_stop_the_others(make_broker: MakeBroker) -> None:
    port = make_broker().start().port
    hanging = await HotConsumer.open(port, 1, half(False), 1000)
    healthy = await HotConsumer.open(port, 2, half(True), 1000)
    publisher = await HotPublisher.open(port)
    publishing = asyncio.create_task(publisher.publish(chain.from_iterable(repeat(LOW + HIGH, 150))))
    await healthy.take_until(lambda: publishing.done() and healthy.has(publisher.numbers, HIGH), 60)
    assert healthy.count == 150 * len(HIGH)
    assert len(hanging.client.inbox) == 1000, "the hanging consumer got as many as it asked for"
    await hanging.take_until(lambda: hanging.has(publisher.numbers, LOW), 60)
    assert hanging.count == 150 * len(LOW)


async def test_a_key_that_is_stuck_and_released_and_stuck_again(make_broker: MakeBroker) -> None:
    port = make_broker().start().port
    stuck = await HotConsumer.open(port, 1, half(False), 0)
    other = await HotConsumer.open(port, 2, half(True), 1000)
    publisher = await HotPublisher.open(port)
    for _ in range(3):
        before = stuck.count
        await publisher.publish(chain.from_iterable(repeat([LOW[0], HIGH[0]], 2000)))
        await other.take_until(lambda: other.has(publisher.numbers, HIGH[:1]), 30)
        assert stuck.take(acknowledge=False) == 0
        stuck.flow(2000)
        await until(lambda: len(stuck.client.inbox) >= 2000, "the key goes on", 30)
        stuck.take(acknowledge=False)
        stuck.client.acknowledge(*stuck.unacknowledged)
        stuck.unacknowledged.clear()
        assert stuck.count == before + 2000
    assert stuck.has(publisher.numbers, LOW[:1])


async def test_a_consumer_that_leaves_with_lanes_hands_them_over_in_order(make_broker: MakeBroker) -> None:
    port = make_broker().start().port
    leaving = await HotConsumer.open(port, 1, auto_split(), 50)
    staying = await HotConsumer.open(port, 2, auto_split(), 1000)
    publisher = await HotPublisher.open(port)
    keys = LOW + HIGH
    await publisher.publish(chain.from_iterable(repeat(keys, 100)))
    await until(lambda: len(leaving.client.inbox) == 50, "the first consumer has its permits used", 10)
    leaving.close()
    await staying.take_until(lambda: staying.has(publisher.numbers, keys), 60)
    assert staying.count == 100 * len(keys)


async def test_after_kill_9_another_key_comes_at_once_and_the_held_ones_in_order(
    make_broker: MakeBroker,
) -> None:
    broker = make_broker(cache_bytes=2**20).start()
    await HotConsumer.open(broker.port, 1, half(False), 10)
    healthy = await HotConsumer.open(broker.port, 2, half(True), 1000)
    publisher = await HotPublisher.open(broker.port)
    memory = broker.memory_bytes()
    await publisher.publish(repeat(LOW[0], HELD))
    await publisher.publish(HIGH)
    await until(lambda: len(healthy.client.inbox) == len(HIGH), "all but one key goes on", 60)
    assert broker.memory_bytes() - memory < MEMORY_MAX
    await asyncio.sleep(2.5)
    broker.kill()
    broker.start()
    began = time.monotonic()
    healthy = await HotConsumer.open(broker.port, 2, half(True), 1000)
    await until(lambda: bool(healthy.client.inbox), "another key comes", 3)
    assert time.monotonic() - began < 3
    await healthy.take_until(lambda: healthy.has(publisher.numbers, HIGH), 30)
    returning = await HotConsumer.open(broker.port, 1, half(False), 1000)
    await returning.take_until(lambda: returning.has(publisher.numbers, LOW[:1]), 90)
    assert returning.count == HELD


async def test_ten_thousand_keys_stuck_at_once(make_broker: MakeBroker) -> None:
    port = make_broker().start().port
    keys = keys_of_half(False, 10_000)
    stuck = await HotConsumer.open(port, 1, half(False), 0)
    healthy = await HotConsumer.open(port, 2, half(True), 1000)
    publisher = await HotPublisher.open(port)
    await publisher.publish([*keys, *HIGH, *keys, *HIGH])
    await healthy.take_until(lambda: healthy.has(publisher.numbers, HIGH), 60)
    assert stuck.take() == 0
    stuck.flow(1000)
    await stuck.take_until(lambda: stuck.has(publisher.numbers, keys), 60)
    assert stuck.count == 20_000
