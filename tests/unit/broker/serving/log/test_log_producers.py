"""Access modes: shared, exclusive, waiting and fencing producers of one log."""

from __future__ import annotations

import pytest

from anabranch.broker.serving.log.log_producers import next_step
from anabranch.errors import ProducerBusyError, ProducerFencedError
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import error_of, settle


async def test_an_exclusive_producer_keeps_others_out_and_has_an_epoch(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    owner = await one.producer(producer_access_mode=pb.Exclusive)
    assert owner.topic_epoch == 0
    assert error_of(await two.producer()) == pb.ProducerBusy
    assert error_of(await two.producer(producer_access_mode=pb.Exclusive)) == pb.ProducerFenced


async def test_a_waiting_producer_is_let_in_when_the_owner_leaves(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer(producer_access_mode=pb.Exclusive)
    waiting = await two.producer(producer_access_mode=pb.WaitForExclusive)
    assert not waiting.producer_ready
    await one.request(pb.CommandCloseProducer(producer_id=1, request_id=0))
    ready = await two.expect(pb.CommandProducerSuccess)
    assert (ready.request_id, ready.producer_ready, ready.topic_epoch) == (waiting.request_id, True, 1)


async def test_a_waiting_producer_cannot_send_and_may_give_up(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    await one.producer(producer_access_mode=pb.Exclusive)
    await two.producer(producer_access_mode=pb.WaitForExclusive)
    two.publish(b"too early", 0)
    await two.request(pb.CommandCloseProducer(producer_id=1, request_id=0))
    await one.request(pb.CommandCloseProducer(producer_id=1, request_id=0))
    await settle()
    assert two.inbox == []
    assert not two.hung_up
    assert isinstance(await one.producer(producer_id=2), pb.CommandProducerSuccess)


async def test_a_fencing_producer_sends_the_others_away_for_good(brokers: Brokers) -> None:
    one, two = await brokers.connect(), await brokers.connect()
    first = await one.producer(producer_name="one", producer_access_mode=pb.Exclusive)
    second = await two.producer(producer_access_mode=pb.ExclusiveWithFencing)
    assert second.topic_epoch == first.topic_epoch + 1
    closed = await one.expect(pb.CommandCloseProducer)
    assert closed.request_id == NO_ID
    back = await one.producer(
        producer_name="one", epoch=1, producer_access_mode=pb.Exclusive, topic_epoch=first.topic_epoch
    )
    assert error_of(back) == pb.ProducerFenced
    await two.request(pb.CommandCloseProducer(producer_id=1, request_id=0))
    late = await one.producer(
        producer_name="one", epoch=2, producer_access_mode=pb.Exclusive, topic_epoch=first.topic_epoch
    )
    assert error_of(late) == pb.ProducerFenced, "its epoch is over, although no other producer is attached"


async def test_an_exclusive_producer_comes_back_after_a_restart_with_its_epoch(brokers: Brokers) -> None:
    client = await brokers.connect()
    owner = await client.producer(producer_name="p", producer_access_mode=pb.Exclusive)
    await brokers.restart()
    client = await brokers.connect()
    back = await client.producer(
        producer_name="p", epoch=1, producer_access_mode=pb.Exclusive, topic_epoch=owner.topic_epoch
    )
    assert back.topic_epoch == owner.topic_epoch


@pytest.mark.parametrize(
    ("mode", "producers", "exclusive", "waiting", "step"),
    [
        (pb.Shared, 0, False, 0, "join"),
        (pb.Shared, 3, False, 0, "join"),
        (pb.Exclusive, 0, False, 0, "own"),
        (pb.WaitForExclusive, 0, False, 0, "own"),
        (pb.WaitForExclusive, 1, False, 0, "wait"),
        (pb.WaitForExclusive, 1, True, 1, "wait"),
        (pb.ExclusiveWithFencing, 0, False, 0, "own"),
        (pb.ExclusiveWithFencing, 2, False, 1, "fence"),
    ],
)
def test_access_modes(mode: int, producers: int, exclusive: bool, waiting: int, step: str) -> None:
    assert next_step(mode, producers=producers, exclusive=exclusive, waiting=waiting) == step


def test_access_modes_that_exclude_each_other() -> None:
    with pytest.raises(ProducerBusyError):
        next_step(pb.Shared, producers=1, exclusive=True, waiting=0)
    with pytest.raises(ProducerBusyError):
        next_step(pb.Shared, producers=1, exclusive=False, waiting=1)
    with pytest.raises(ProducerFencedError):
        next_step(pb.Exclusive, producers=1, exclusive=False, waiting=0)
