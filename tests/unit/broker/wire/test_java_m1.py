"""Consumers of the Java client 5.0.0-M1: fenced as others, and let in where it would give up."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.wire.java_m1 import HANDOVER_S, is_java_m1
from anabranch.broker.wire.java_m1 import VERSION as M1
from anabranch.errors import NotLeaderError
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.segments import (
    LOWER,
    UPPER,
    WHOLE,
    assigned_topics,
    attach_stream,
    create_topic,
    leader_of_topic,
    newest_assignment,
    register_stream,
)
from tests.harness.wire import (
    error_of,
    look_up,
    register_consumer,
    settle,
)

pytestmark = pytest.mark.brokers(auto_scale_interval_s=3600.0)


def test_the_client_is_known_by_the_start_of_its_version() -> None:
    assert is_java_m1("Pulsar-Java-v5.0.0-M1-described")
    assert not is_java_m1("Pulsar-Java-v5.0.0")


async def test_clients_that_name_themselves_by_segment_are_fenced_too(brokers: Brokers) -> None:
    await create_topic(brokers, 1)
    control, stale, other = [await brokers.connect(version=M1) for _ in range(3)]
    await register_stream(control, "a")
    assert isinstance(await attach_stream(stale, WHOLE, "a-seg-0", None, permits=1), pb.CommandSuccess)
    await stale.deliveries(1)
    control.close()
    await asyncio.sleep(61)
    assert stale.has(pb.CommandCloseConsumer)
    assert error_of(await attach_stream(stale, WHOLE, "a-seg-0", None)) == pb.ConsumerBusy
    await register_stream(other, "b")
    assert isinstance(await attach_stream(other, WHOLE, "b-seg-0", None), pb.CommandSuccess)
    assert len(await other.deliveries(4)) == 4


async def test_clients_that_miss_an_assignment_are_told_again_while_another_waits(brokers: Brokers) -> None:
    await create_topic(brokers, 2)
    one, two = await brokers.connect(version=M1), await brokers.connect(version=M1)
    held = await register_stream(one, "a")
    given = await register_stream(two, "b")
    assert assigned_topics(held) == [LOWER, UPPER]
    (moved,) = assigned_topics(given)
    await settle()
    one.inbox.clear()  # M1 drops an assignment that arrives while it attaches.
    for number, segment in enumerate((LOWER, UPPER), 1):
        name = f"a-seg-{number - 1}"
        assert isinstance(
            await attach_stream(one, segment, name, None, consumer_id=number), pb.CommandSuccess
        )
    await settle()
    one.inbox.clear()
    coming = asyncio.create_task(attach_stream(two, moved, f"b-seg-{moved[-1]}", None))
    assert moved not in assigned_topics(await newest_assignment(one))
    await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1 if moved == LOWER else 2))
    assert isinstance(await coming, pb.CommandSuccess)


async def test_a_client_that_comes_for_a_segment_when_it_is_another_s_is_let_in_and_out_again(
    brokers: Brokers,
) -> None:
    await create_topic(brokers, 2)
    one, two = await brokers.connect(version=M1), await brokers.connect(version=M1)
    held = await register_stream(one, "a")
    (moved,) = assigned_topics(await register_stream(two, "b"))
    assert assigned_topics(held) == [LOWER, UPPER]
    assert isinstance(await attach_stream(two, moved, f"b-seg-{moved[-1]}", None), pb.CommandSuccess)
    await settle()
    one.inbox.clear()  # M1 drops an assignment that arrives while it attaches.
    async with asyncio.timeout(1):
        for number, segment in enumerate((LOWER, UPPER), 1):
            name = f"a-seg-{number - 1}"
            answer = await attach_stream(one, segment, name, None, consumer_id=number)
            assert isinstance(answer, pb.CommandSuccess)
    assert moved not in assigned_topics(await newest_assignment(one))
    (closed,) = one.has(pb.CommandCloseConsumer)
    assert closed.consumer_id == (1 if moved == LOWER else 2)
    assert not two.has(pb.CommandCloseConsumer)


async def test_a_client_that_waits_for_its_turn_is_not_turned_away_for_want_of_a_leader(
    brokers: Brokers,
) -> None:
    await create_topic(brokers, 1)
    one, two = await brokers.connect(version=M1), await brokers.connect(version=M1)
    await attach_stream(one, WHOLE, "plain", None)

    async def away(sub: str) -> None:
        raise NotLeaderError("no controller leads the topic here")

    (await leader_of_topic(brokers)).remind = away  # type: ignore[method-assign]
    coming = asyncio.create_task(attach_stream(two, WHOLE, "other", None))
    await settle()
    await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    assert isinstance(await coming, pb.CommandSuccess)


@pytest.mark.brokers(auto_scale_interval_s=3600.0, consumer_grace_s=1.0)
async def test_the_surplus_of_clients_without_buckets_waits_for_a_segment_of_its_own(
    brokers: Brokers,
) -> None:
    one, two = await brokers.connect(version=M1), await brokers.connect(version=M1)
    await look_up(one)
    first = await register_consumer(one, "a")
    assert [s.segment_topic for s in first.assignment.segments] == [WHOLE]
    assert list((await register_consumer(two, "b")).assignment.segments) == []
    await settle()
    assert one.has(pb.CommandScalableTopicAssignmentUpdate) == []
    one.close()
    update = await two.expect(pb.CommandScalableTopicAssignmentUpdate)
    assert [len(s.bucket_ranges) for s in update.assignment.segments] == [0]


async def test_a_client_without_buckets_waits_until_the_former_reader_of_a_segment_is_gone(
    brokers: Brokers,
) -> None:
    one, two, other = (
        await brokers.connect(version=M1),
        await brokers.connect(version=M1),
        await brokers.connect(),
    )
    await look_up(one)
    assert isinstance(await one.subscribe(WHOLE), pb.CommandSuccess)
    assert error_of(await other.subscribe(WHOLE)) == pb.ConsumerBusy
    coming = asyncio.create_task(two.subscribe(WHOLE))
    await settle()
    assert not coming.done()
    await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    assert isinstance(await coming, pb.CommandSuccess)
    one.send(
        pb.CommandSubscribe(
            topic=WHOLE,
            subscription="sub",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=2,
            request_id=99,
        )
    )
    await asyncio.sleep(HANDOVER_S - 1)
    assert one.has(pb.CommandError) == []
    await asyncio.sleep(2)
    assert [answer.error for answer in one.has(pb.CommandError)] == [pb.ConsumerBusy]
