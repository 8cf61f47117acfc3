"""One rate over two brokers: its shares follow the load, and their sum stays the rate."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.model.names import TopicName
from anabranch.protocol.commands import SendReceipt
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers
from tests.harness.wire import WireClient, settle

pytestmark = pytest.mark.brokers(count=2)

RATE = 200


async def limit(brokers: Brokers, path: str, body: object) -> None:
    assert (await Admin(brokers).ask("POST", f"/admin/v2/{path}", body)).status == 204
    await settle()


async def producers(brokers: Brokers) -> list[WireClient]:
    """Return a producing client at each broker; each has a segment of one topic."""
    name = TopicName.parse("topic://public/default/orders")
    await brokers[0].controllers.create_topic(name, 2)
    clients = {}
    for segment in (await brokers[0].records.load(name)).segments.values():
        owner = brokers[0].directory.owner_of(segment.store)
        assert owner is not None
        clients[owner.id] = client = await brokers.connect(owner.id)
        start, end = segment.hash_range.start, segment.hash_range.end
        topic = f"segment://public/default/orders/{start:04x}-{end:04x}-{segment.segment_id}"
        await client.producer(topic, producer_name="p")
    assert len(clients) == 2
    return [clients[0], clients[1]]


class Load:
    """Publishes without end, as fast as receipts come."""

    def __init__(self, client: WireClient) -> None:
        self.sent = 0
        self._client = client
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await self._client.publish_all([b"x"] * 10, first=self.sent)
            self.sent += 10

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._client.inbox = [c for c in self._client.inbox if not isinstance(c, SendReceipt)]


async def rate_of(loads: list[Load], seconds: float) -> list[float]:
    before = [load.sent for load in loads]
    await asyncio.sleep(seconds)
    return [(load.sent - old) / seconds for load, old in zip(loads, before, strict=True)]


@pytest.mark.parametrize("path", ["namespaces/public/default/publishRate", "tenants/public/quotas"])
async def test_the_rate_is_shared_out_by_load(brokers: Brokers, path: str) -> None:
    rate: dict[str, object] = {"publishThrottlingRateInMsg": RATE}
    await limit(brokers, path, rate if path.endswith("Rate") else {"publishRate": rate})
    clients = await producers(brokers)
    loads = [Load(client) for client in clients]
    await asyncio.sleep(5.0)
    both = await rate_of(loads, 20.0)
    assert sum(both) == pytest.approx(RATE, rel=0.1)
    assert both[0] == pytest.approx(RATE / 2, rel=0.2)
    await loads[1].end()
    await asyncio.sleep(5.0)
    (alone,) = await rate_of(loads[:1], 20.0)
    assert alone == pytest.approx(0.95 * RATE, rel=0.1)
    await loads[0].end()


async def test_a_topic_at_one_broker_has_the_whole_rate(brokers: Brokers) -> None:
    await limit(brokers, "namespaces/public/default/publishRate", {"publishThrottlingRateInMsg": RATE})
    client = await brokers.connect(0)
    await client.producer("persistent://public/default/alone")
    load = Load(client)
    await asyncio.sleep(2.0)
    (alone,) = await rate_of([load], 20.0)
    assert alone == pytest.approx(RATE, rel=0.05)
    await load.end()


async def test_the_share_of_a_dead_broker_goes_to_the_others(brokers: Brokers) -> None:
    await limit(brokers, "namespaces/public/default/publishRate", {"publishThrottlingRateInMsg": RATE})
    clients = await producers(brokers)
    loads = [Load(client) for client in clients]
    await asyncio.sleep(5.0)
    await loads[1].end()
    brokers.kill(1)
    await asyncio.sleep(10.0)
    (alone,) = await rate_of(loads[:1], 20.0)
    assert alone == pytest.approx(RATE, rel=0.1)
    # The next process of the broker has no load, even if the former one reported some.
    await brokers.start(1)
    await asyncio.sleep(10.0)
    (alone,) = await rate_of(loads[:1], 20.0)
    assert alone >= 0.9 * RATE
    await loads[0].end()
