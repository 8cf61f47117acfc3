"""Two brokers, and a consumer that is cut off from the leader of its topic but not from its segments."""

from __future__ import annotations

import asyncio

import pytest

from anabranch import AsyncStreamConsumer, Message
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.config.broker import BrokerConfig
from anabranch.controller.decide.admission import Roster
from anabranch.errors import ConsumerBusyError
from anabranch.metadata.layouts import layout_of
from anabranch.model.names import TopicName
from anabranch.model.policy import AutoScalePolicy
from simulation.cluster.cluster import Cluster
from simulation.judges.metadata_witness import WitnessSettings
from simulation.judges.wiretap import WireTap
from simulation.judges.witness import Witness
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess
from simulation.world.transport import Mode

TOPIC = TopicName.parse("topic://public/default/orders")
KEYS = 40
GRACE_S = 5.0
EVICTED_S = 30.0
"""Long enough for the leader to notice the silence and to wait for the grace period."""


class Play:
    """One topic with a segment on each broker, and what each consumer received, by key."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        config = BrokerConfig(
            workers=2, auto_scale=AutoScalePolicy(enabled=False), consumer_grace_s=GRACE_S, keep_alive_s=5.0
        )
        self.cluster = Cluster(loop, config=config)
        self.received: dict[str, list[Message[bytes]]] = {}

    async def start(self) -> None:
        cluster = self.cluster
        self.loop.create_task(cluster.keep_up())
        self.witness = Witness(
            self.loop,
            cluster.history,
            cluster.counts,
            WitnessSettings(
                topic=TOPIC,
                ordered=frozenset(["s"]),
                grace_s=GRACE_S,
                log_of=cluster.log_of,
                leads=lambda process: cluster.leads(process, TOPIC),
                committed=lambda layout: None,
            ),
        )
        cluster.tree.seen = self.witness.changed
        cluster.network.tap = WireTap(self.witness)
        for host in cluster.hosts:
            await host.up.wait()
        # Wait until each broker owns its store, so that the segments are spread.
        await asyncio.sleep(2)
        await cluster.in_broker(lambda broker: broker.controllers.create_topic(TOPIC, 2))
        record = await cluster.record(TOPIC)
        assert record is not None
        self.leader = cluster.hosts[record.store]
        (self.remote,) = (s for s in layout_of(record).active if s.store != record.store)

    def process(self, name: str) -> SimProcess:
        return SimProcess(self.loop, name)

    async def publish(self, number: int) -> None:
        """One message with this number for each key."""

        async def work() -> None:
            async with self.cluster.client(process) as client:
                producer = await client.create_producer(str(TOPIC))
                keys = [f"key-{key}" for key in range(KEYS)]
                await producer.send_many([b"%d" % number] * KEYS, keys=keys)

        process = self.process(f"producer-{number}")
        await process.spawn(work())

    async def consume(self, process: SimProcess, *, acknowledge: bool) -> AsyncStreamConsumer[bytes]:
        """Open a consumer and let it receive for ever."""
        client = self.cluster.client(process)
        consumer = await client.subscribe_stream(
            str(TOPIC), "s", initial_position="earliest", name=process.name
        )
        received = self.received[process.name] = []

        async def receive() -> None:
            while True:
                messages = await consumer.receive_many(100, timeout=1.0)
                received.extend(messages)
                if acknowledge and messages:
                    await consumer.acknowledge_cumulative(messages[-1])

        process.spawn(receive())
        return consumer

    def numbers(self, name: str) -> dict[str, list[int]]:
        """Return the numbers that a consumer got of the segment at the other broker, by key."""
        found: dict[str, list[int]] = {}
        for message in self.received[name]:
            if message.id.segment == self.remote.id:
                assert message.key is not None
                found.setdefault(message.key, []).append(int(message.data))
        return found

    @property
    def wrong(self) -> list[str]:
        self.witness.settle_doubts()
        return self.cluster.history.witnessed

    def members(self) -> list[str]:
        return sorted(self.witness.subscriptions["s"].consumers)


@pytest.fixture
async def play(loop: SimLoop) -> Play:
    made = Play(loop)
    await made.start()
    return made


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.virtual_time(limit_s=300)
async def test_an_evicted_consumer_stops_before_the_next_one_starts(play: Play) -> None:
    network = play.cluster.network
    await play.publish(0)
    stale = play.process("stale")
    holder = await stale.spawn(play.consume(stale, acknowledge=False))
    await asyncio.sleep(2)
    held = play.numbers("stale")
    assert held
    assert all(numbers == [0] for numbers in held.values())

    network.set_mode(network.link("stale", play.leader.name), Mode.BLACK_HOLE)
    await play.publish(1)
    await asyncio.sleep(EVICTED_S)
    assert play.members() == []
    await play.publish(2)
    await asyncio.sleep(5)
    assert all(numbers == [0, 1] for numbers in play.numbers("stale").values()), "2 came too late for it"

    fresh = play.process("fresh")
    await fresh.spawn(play.consume(fresh, acknowledge=True))
    await asyncio.sleep(5)
    assert play.numbers("fresh") == {key: [0, 1, 2] for key in held}, "none was acknowledged"

    last = play.received["stale"][-1]
    await stale.spawn(holder.acknowledge_cumulative(last))
    flushing = stale.spawn(holder.flush_acks())
    network.heal()
    with pytest.raises(ConsumerBusyError, match="not confirmed"):
        await flushing
    await asyncio.sleep(5)
    assert play.members() == ["fresh", "stale"]
    await play.publish(3)
    await asyncio.sleep(5)
    for key in held:
        got = [n for name in ("fresh", "stale") for n in play.numbers(name)[key]]
        assert got.count(3) == 1
    assert play.wrong == []


@pytest.mark.virtual_time(limit_s=300)
async def test_a_broker_that_lets_the_evicted_acknowledge_is_caught(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Subscription.restrict

    def restrict(self: Subscription, roster: Roster) -> None:
        with monkeypatch.context() as deaf:
            deaf.setattr(ServedConsumer, "close", lambda consumer, **how: None)
            honest(self, roster)

    monkeypatch.setattr(Subscription, "restrict", restrict)
    network = play.cluster.network
    await play.publish(0)
    stale, fresh = play.process("stale"), play.process("fresh")
    holder = await stale.spawn(play.consume(stale, acknowledge=False))
    await asyncio.sleep(2)
    network.set_mode(network.link("stale", play.leader.name), Mode.BLACK_HOLE)
    await asyncio.sleep(EVICTED_S)
    await fresh.spawn(play.consume(fresh, acknowledge=False))
    await asyncio.sleep(5)
    await stale.spawn(holder.acknowledge_cumulative(play.received["stale"][-1]))
    await asyncio.sleep(5)
    segment = f"on segment {play.remote.id}"
    acknowledged = [text for text in play.wrong if f"stale {segment} acknowledged" in text]
    assert acknowledged
    assert all(text.endswith(f"which fresh {segment} holds") for text in acknowledged)
