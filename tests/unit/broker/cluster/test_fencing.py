"""A consumer that lost its place can neither read nor acknowledge, although its connections are open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.broker.wire.java_m1 import VERSION as M1
from anabranch.controller.decide.admission import Admission, AttachRequest
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import NotConnectedError
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
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
from tests.harness.wire import error_of, settle, values_of

pytestmark = pytest.mark.brokers(auto_scale_interval_s=3600.0)


async def unreachable(*arguments: object, **named: object) -> None:
    raise NotConnectedError("the owner is away")


async def test_an_evicted_consumer_whose_segment_connection_lives_reads_and_acknowledges_no_more(
    brokers: Brokers,
) -> None:
    producer = await create_topic(brokers, 1)
    control, stale, other = await brokers.connect(), await brokers.connect(), await brokers.connect()
    held = await register_stream(control, "a")
    assert isinstance(await attach_stream(stale, WHOLE, "a", held.generation, permits=2), pb.CommandSuccess)
    got = await stale.deliveries(2)
    control.close()
    await asyncio.sleep(61)
    assert [c.consumer_id for c in stale.has(pb.CommandCloseConsumer)] == [1]

    stale.flow(1000)
    await producer.publish_all([b"4"], first=4)
    await settle()
    assert await stale.acknowledge_durably(*got, cumulative=True) == pb.CommandAckResponse(
        consumer_id=1,
        request_id=2,
        error=pb.ConsumerNotFound,
        message="consumer 1 is not attached",
    )
    assert error_of(await attach_stream(stale, WHOLE, "a", held.generation)) == pb.ConsumerBusy
    assert stale.has(Delivery) == []

    given = await register_stream(other, "b")
    await attach_stream(other, WHOLE, "b", given.generation)
    assert values_of(await other.deliveries(5)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_next_reader_brings_the_news_that_its_owner_did_not_hear(brokers: Brokers) -> None:
    await create_topic(brokers, 1)
    control, stale, other = await brokers.connect(), await brokers.connect(), await brokers.connect()
    held = await register_stream(control, "a")
    await attach_stream(stale, WHOLE, "a", held.generation, permits=2)
    got = await stale.deliveries(2)

    brokers[0].segments.restrict = unreachable  # type: ignore[method-assign]
    control.close()
    await asyncio.sleep(61)
    assert stale.has(pb.CommandCloseConsumer) == []
    given = await register_stream(other, "b")
    assert isinstance(await attach_stream(other, WHOLE, "b", given.generation), pb.CommandSuccess)
    await stale.expect(pb.CommandCloseConsumer)
    assert (await stale.acknowledge_durably(*got)).error == pb.ConsumerNotFound
    assert values_of(await other.deliveries(4)) == [b"0", b"1", b"2", b"3"]


async def test_a_consumer_that_leaves_is_gone_from_segments_it_did_not_close(brokers: Brokers) -> None:
    await create_topic(brokers, 1)
    one = await brokers.connect()
    held = await register_stream(one, "a")
    await attach_stream(one, WHOLE, "a", held.generation)
    await one.deliveries(4)
    await one.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=77))
    assert one.has(pb.CommandCloseConsumer)
    assert error_of(await attach_stream(one, WHOLE, "a", held.generation)) == pb.ConsumerBusy


async def test_a_namesake_after_an_eviction_takes_nothing_over_from_the_former_one(brokers: Brokers) -> None:
    await create_topic(brokers, 1)
    control, stale, fresh = await brokers.connect(), await brokers.connect(), await brokers.connect()
    held = await register_stream(control, "a")
    await attach_stream(stale, WHOLE, "a", held.generation, permits=1)
    control.close()
    await asyncio.sleep(61)
    again = await register_stream(fresh, "a")
    assert again.generation > held.generation
    assert error_of(await attach_stream(stale, WHOLE, "a", held.generation)) == pb.ConsumerBusy
    assert isinstance(await attach_stream(fresh, WHOLE, "a", again.generation), pb.CommandSuccess)
    assert values_of(await fresh.deliveries(4)) == [b"0", b"1", b"2", b"3"]


async def test_a_segment_goes_to_its_next_reader_when_what_is_out_is_acknowledged(brokers: Brokers) -> None:
    await create_topic(brokers, 2)
    one, two = await brokers.connect(), await brokers.connect()
    held = await register_stream(one, "a")
    assert assigned_topics(held) == [LOWER, UPPER]
    await attach_stream(one, UPPER, "a", held.generation, permits=2)
    await attach_stream(one, LOWER, "a", held.generation, consumer_id=2)
    got = await one.deliveries(2)
    given = await register_stream(two, "b")
    kept = await newest_assignment(one)
    assert (assigned_topics(kept), assigned_topics(given)) == ([LOWER], [UPPER])
    one.flow(1000)
    await settle()
    assert one.has(Delivery) == [], "it has permits, but the segment is another's"
    assert error_of(await attach_stream(two, UPPER, "b", given.generation)) == pb.ConsumerBusy
    assert not (await one.acknowledge_durably(*got)).HasField("error"), "its entries still count"
    await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    assert isinstance(await attach_stream(two, UPPER, "b", given.generation), pb.CommandSuccess)
    assert values_of(await two.deliveries(2)) == [b"2", b"3"]
    assert error_of(await attach_stream(one, UPPER, "a", kept.generation, consumer_id=3)) == pb.ConsumerBusy


async def test_a_generation_that_is_over_cannot_attach_where_its_segment_was_another_s_since(
    brokers: Brokers,
) -> None:
    await create_topic(brokers, 2)
    one, two = await brokers.connect(), await brokers.connect()
    held = await register_stream(one, "a")
    (moved,) = assigned_topics(await register_stream(two, "b"))
    await two.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=77))
    again = await newest_assignment(one)
    assert assigned_topics(again) == [LOWER, UPPER]
    assert error_of(await attach_stream(one, moved, "a", held.generation)) == pb.ConsumerBusy
    assert assigned_topics(await newest_assignment(one)) == [LOWER, UPPER], (
        "a refused consumer receives its assignment"
    )
    assert isinstance(await attach_stream(one, moved, "a", again.generation), pb.CommandSuccess)


class CountingLeader:
    """Counts the consumers that the leader of the topic is asked about."""

    def __init__(self, controller: TopicController) -> None:
        self.asked: list[tuple[int, str]] = []
        self._admit = controller.admit
        controller.admit = self._count  # type: ignore[method-assign]

    async def _count(self, sub: str, request: AttachRequest) -> Admission:
        self.asked.append((request.segment_id, request.consumer_name))
        return await self._admit(sub, request)


async def test_the_owner_admits_a_consumer_by_its_assignment_without_asking_the_leader(
    brokers: Brokers,
) -> None:
    await create_topic(brokers, 2)
    one, two = await brokers.connect(), await brokers.connect()
    leader_calls = CountingLeader(await leader_of_topic(brokers))
    held = await register_stream(one, "a")
    answer = await attach_stream(one, LOWER, "a", held.generation, opened_in=0)
    assert isinstance(answer, pb.CommandSuccess)
    assert (answer.HasField("incarnation"), answer.incarnation) == (True, 0)
    given = await register_stream(two, "b")
    assert isinstance(
        await attach_stream(two, assigned_topics(given)[0], "b", given.generation), pb.CommandSuccess
    )
    assert leader_calls.asked == []


async def test_the_owner_asks_the_leader_about_what_its_roster_does_not_prove(brokers: Brokers) -> None:
    await create_topic(brokers, 1)
    one, two, three = await brokers.connect(), await brokers.connect(), await brokers.connect(version=M1)
    leader_calls = CountingLeader(await leader_of_topic(brokers))
    held = await register_stream(one, "a")
    for token, incarnation in ((held.generation + 1, 0), (held.generation - 1, 0), (held.generation, 9)):
        await attach_stream(two, WHOLE, "a", token, opened_in=incarnation)
        await two.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    await attach_stream(two, WHOLE, "b", held.generation)
    await attach_stream(three, WHOLE, "a-seg-0", None)
    assert leader_calls.asked == [(0, "a"), (0, "a"), (0, "a"), (0, "b"), (0, "a-seg-0")]


async def test_after_a_seek_the_owner_asks_the_leader(brokers: Brokers) -> None:
    await create_topic(brokers, 1)
    one = await brokers.connect()
    controller = await leader_of_topic(brokers)
    held = await register_stream(one, "a")
    await attach_stream(one, WHOLE, "a", held.generation)
    await controller.seek("stream", 0)
    leader_calls = CountingLeader(controller)
    for _ in range(2):
        assert isinstance(await attach_stream(one, WHOLE, "a", held.generation), pb.CommandSuccess)
        await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    assert leader_calls.asked == [(0, "a")], "its answer brings the roster"


@pytest.mark.parametrize("version", ["Anabranch-Test", M1])
@pytest.mark.parametrize("evicted", [False, True])
async def test_a_subscribe_under_way_while_its_consumer_loses_the_segment(
    brokers: Brokers, version: str, evicted: bool
) -> None:
    producer = await create_topic(brokers, 2)
    control, data = [await brokers.connect(version=version) for _ in range(2)]
    other = await brokers.connect()
    restrict = brokers[0].segments.restrict
    brokers[0].segments.restrict = unreachable  # type: ignore[method-assign]
    held = await register_stream(control, "a")
    brokers[0].segments.restrict = restrict  # type: ignore[method-assign]
    controller = await leader_of_topic(brokers)
    granted = asyncio.Event()
    go_on = asyncio.Event()
    admit = controller.admit

    async def slow(*arguments: Any) -> Any:
        grant = await admit(*arguments)
        granted.set()
        await go_on.wait()
        return grant

    controller.admit = slow  # type: ignore[assignment, method-assign]
    name, generation = ("a-seg-1", None) if version == M1 else ("a", held.generation)
    coming = asyncio.create_task(attach_stream(data, UPPER, name, generation))
    await granted.wait()
    if evicted:
        await control.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=77))
    else:
        assert assigned_topics(await register_stream(other, "b")) == [UPPER]
    go_on.set()
    if evicted or version != M1:
        assert error_of(await coming) == pb.ConsumerBusy
    else:
        assert isinstance(await coming, pb.CommandSuccess), "it would give up, so it may finish"
    await producer.publish_all([b"4"], first=4)
    await settle()
    assert data.has(Delivery) == []


async def test_plain_consumers_read_a_segment_only_without_registered_consumers(brokers: Brokers) -> None:
    await create_topic(brokers, 1)
    plain, member = await brokers.connect(), await brokers.connect()
    assert isinstance(await attach_stream(plain, WHOLE, "plain", None), pb.CommandSuccess)
    assert len(await plain.deliveries(4)) == 4
    await plain.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    await register_stream(member, "a")
    assert error_of(await attach_stream(plain, WHOLE, "plain", None)) == pb.ConsumerBusy


async def test_unsubscribing_on_a_segment_removes_the_subscription_from_the_topic(brokers: Brokers) -> None:
    await create_topic(brokers, 2)
    one, two = await brokers.connect(), await brokers.connect()
    controller = await leader_of_topic(brokers)
    await one.subscribe(LOWER, "plain")
    await two.subscribe(UPPER, "plain")
    answer = await one.request(pb.CommandUnsubscribe(request_id=0, consumer_id=1))
    assert isinstance(answer, pb.CommandSuccess)
    assert one.has(pb.CommandCloseConsumer) == [], "its client would subscribe again"
    await settle()
    assert two.has(pb.CommandCloseConsumer)
    assert "plain" not in controller.records
    for name in (LOWER, UPPER):
        segment = brokers[0].logs.get(TopicName.parse(name))
        assert segment is not None
        assert "plain" not in segment.log.cursors


async def test_unsubscribing_is_refused_while_others_are_registered(brokers: Brokers) -> None:
    await create_topic(brokers, 1)
    member = await brokers.connect()
    held = await register_stream(member, "a")
    await attach_stream(member, WHOLE, "a", held.generation)
    await member.deliveries(4)
    answer = await member.request(pb.CommandUnsubscribe(request_id=0, consumer_id=1))
    assert error_of(answer) == pb.ConsumerBusy
    member.flow(10)
    await settle()
    assert member.has(pb.CommandCloseConsumer) == [], "and goes on reading"


async def test_a_seek_on_a_drained_segment_closes_its_children_again(brokers: Brokers) -> None:
    await create_topic(brokers, 1)
    plain, member = await brokers.connect(), await brokers.connect()
    controller = await leader_of_topic(brokers)
    await attach_stream(plain, WHOLE, "plain", None)
    got = await plain.deliveries(4)
    await controller.split(0)
    await plain.acknowledge_durably(*got)
    await settle()
    assert controller.records["stream"].drained == (0,)
    answer = await plain.request(
        pb.CommandSeek(
            request_id=0,
            consumer_id=1,
            message_id=pb.MessageIdData(ledgerId=got[2].ledger, entryId=got[2].entry),
        )
    )
    assert isinstance(answer, pb.CommandSuccess)
    assert plain.has(pb.CommandCloseConsumer), "as for every seek"
    assert controller.records.existing("stream").drained == ()
    held = await register_stream(member, "a")
    assert assigned_topics(held) == [WHOLE]
    await attach_stream(member, WHOLE, "a", held.generation)
    again = await member.deliveries(2)
    assert values_of(again) == [b"2", b"3"]
    await member.acknowledge_durably(*again)
    assert len((await newest_assignment(member)).segments) == 2

    past = pb.CommandSeek(request_id=0, consumer_id=1, message_publish_time=0)
    assert isinstance(await member.request(past), pb.CommandSuccess)
    assert assigned_topics(await newest_assignment(member)) == [WHOLE]
