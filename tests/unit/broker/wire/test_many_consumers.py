"""Many consumers of one connection and one subscription: each one costs the same as the first."""

from __future__ import annotations

import pytest

from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.loop import SimLoop
from tests.harness.cluster import Brokers
from tests.harness.steps import longest_step
from tests.harness.wire import TOPIC, WireClient, settle

COUNT = 1000
STEP_CPU_S = 0.1
KINDS = [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover, pb.CommandSubscribe.Key_Shared]


async def _attach(client: WireClient, kind: pb.CommandSubscribe.SubType.ValueType) -> None:
    for number in range(COUNT):
        client.send(
            pb.CommandSubscribe(
                topic=TOPIC,
                subscription="sub",
                subType=kind,
                consumer_id=number,
                consumer_name=f"c{number}",
                request_id=number,
            )
        )
    await settle()
    assert len(client.has(pb.CommandSuccess)) == COUNT


def _subscription(brokers: Brokers) -> Subscription:
    (log,) = brokers[0].logs.served
    return log.subscriptions["sub"]


@pytest.mark.parametrize("kind", KINDS)
async def test_consumers_that_come_and_go_at_once_leave_time_for_others(
    kind: pb.CommandSubscribe.SubType.ValueType, brokers: Brokers, loop: SimLoop
) -> None:
    client = await brokers.connect()
    with longest_step(loop) as longest:
        await _attach(client, kind)
        for number in range(COUNT // 2):
            client.send(pb.CommandCloseConsumer(consumer_id=number, request_id=number))
        await settle()
        assert len(_subscription(brokers).consumers) == COUNT - COUNT // 2
        client.close()
        await settle()
    assert not _subscription(brokers).consumers
    assert longest.cpu_s < STEP_CPU_S


async def test_the_consumers_of_a_lost_connection_are_gone_for_the_next_one(brokers: Brokers) -> None:
    client = await brokers.connect()
    await _attach(client, pb.CommandSubscribe.Failover)
    client.close()
    other = await brokers.connect()
    answer = await other.subscribe(name="next")
    assert isinstance(answer, pb.CommandSuccess)
