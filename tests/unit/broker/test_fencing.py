"""A consumer that lost its place can neither read nor acknowledge, although its connections are open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.controller.decide.admission import Admission, AttachRequest
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import NotConnectedError, NotLeaderError
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import World
from tests.harness.wire import WireClient, error_of, register_consumer, settle, values_of

NAME = "topic://public/default/orders"
WHOLE = "segment://public/default/orders/0000-ffff-0"
LOWER = "segment://public/default/orders/0000-7fff-0"
UPPER = "segment://public/default/orders/8000-ffff-1"
M1 = "Pulsar-Java-v5.0.0-M1"

pytestmark = pytest.mark.world(auto_scale_interval_s=3600.0)


async def create(world: World, segments: int) -> WireClient:
    """The topic, and a client that has published to its last segment."""
    await world.broker.controllers.create_topic(TopicName.parse(NAME), segments)
    client = await world.connect()
    await client.producer(WHOLE if segments == 1 else UPPER)
    await client.publish_all([b"0", b"1", b"2", b"3"])
    return client


async def leader(world: World) -> TopicController:
    controller = await world.broker.controllers.controller(TopicName.parse(NAME))
    assert isinstance(controller, TopicController)
    return controller


async def register(client: WireClient, name: str, **options: Any) -> pb.ScalableConsumerAssignment:
    answer = await register_consumer(client, name, 77, **options)
    assert isinstance(answer, pb.CommandScalableTopicSubscribeResponse)
    assert not answer.HasField("error")
    return answer.assignment


async def attach(client: WireClient, segment: str, name: str, generation: int | None, **options: Any) -> Any:
    if generation is not None:
        options["generation"] = generation
    return await client.subscribe(segment, "stream", name=name, **options)


async def newest(client: WireClient) -> pb.ScalableConsumerAssignment:
    """The last of the assignments that were pushed."""
    await settle()
    pushed = client.has(pb.CommandScalableTopicAssignmentUpdate)
    client.inbox = [command for command in client.inbox if command not in pushed]
    assignment: pb.ScalableConsumerAssignment = pushed[-1].assignment
    return assignment


async def unreachable(*arguments: object, **named: object) -> None:
    raise NotConnectedError("the owner is away")


def topics(assignment: pb.ScalableConsumerAssignment) -> list[str]:
    return sorted(segment.segment_topic for segment in assignment.segments)


async def test_an_evicted_consumer_whose_segment_connection_lives_reads_and_acknowledges_no_more(
    world: World,
) -> None:
    producer = await create(world, 1)
    control, stale, other = await world.connect(), await world.connect(), await world.connect()
    held = await register(control, "a")
    assert isinstance(await attach(stale, WHOLE, "a", held.generation, permits=2), pb.CommandSuccess)
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
    assert error_of(await attach(stale, WHOLE, "a", held.generation)) == pb.ConsumerBusy
    assert stale.has(Delivery) == []

    given = await register(other, "b")
    await attach(other, WHOLE, "b", given.generation)
    assert values_of(await other.deliveries(5)) == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_next_reader_brings_the_news_that_its_owner_did_not_hear(world: World) -> None:
    await create(world, 1)
    control, stale, other = await world.connect(), await world.connect(), await world.connect()
    held = await register(control, "a")
    await attach(stale, WHOLE, "a", held.generation, permits=2)
    got = await stale.deliveries(2)

    world.broker.segments.restrict = unreachable  # type: ignore[method-assign]
    control.close()
    await asyncio.sleep(61)
    assert stale.has(pb.CommandCloseConsumer) == []
    given = await register(other, "b")
    assert isinstance(await attach(other, WHOLE, "b", given.generation), pb.CommandSuccess)
    await stale.expect(pb.CommandCloseConsumer)
    assert (await stale.acknowledge_durably(*got)).error == pb.ConsumerNotFound
    assert values_of(await other.deliveries(4)) == [b"0", b"1", b"2", b"3"]


async def test_a_consumer_that_leaves_is_gone_from_segments_it_did_not_close(world: World) -> None:
    await create(world, 1)
    one = await world.connect()
    held = await register(one, "a")
    await attach(one, WHOLE, "a", held.generation)
    await one.deliveries(4)
    await one.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=77))
    assert one.has(pb.CommandCloseConsumer)
    assert error_of(await attach(one, WHOLE, "a", held.generation)) == pb.ConsumerBusy


async def test_a_namesake_after_an_eviction_takes_nothing_over_from_the_former_one(world: World) -> None:
    await create(world, 1)
    control, stale, fresh = await world.connect(), await world.connect(), await world.connect()
    held = await register(control, "a")
    await attach(stale, WHOLE, "a", held.generation, permits=1)
    control.close()
    await asyncio.sleep(61)
    again = await register(fresh, "a")
    assert again.generation > held.generation
    assert error_of(await attach(stale, WHOLE, "a", held.generation)) == pb.ConsumerBusy
    assert isinstance(await attach(fresh, WHOLE, "a", again.generation), pb.CommandSuccess)
    assert values_of(await fresh.deliveries(4)) == [b"0", b"1", b"2", b"3"]


async def test_a_segment_goes_to_its_next_reader_when_what_is_out_is_acknowledged(world: World) -> None:
    await create(world, 2)
    one, two = await world.connect(), await world.connect()
    held = await register(one, "a")
    assert topics(held) == [LOWER, UPPER]
    await attach(one, UPPER, "a", held.generation, permits=2)
    await attach(one, LOWER, "a", held.generation, consumer_id=2)
    got = await one.deliveries(2)
    given = await register(two, "b")
    kept = await newest(one)
    assert (topics(kept), topics(given)) == ([LOWER], [UPPER])
    one.flow(1000)
    await settle()
    assert one.has(Delivery) == [], "it has permits, but the segment is another's"
    assert error_of(await attach(two, UPPER, "b", given.generation)) == pb.ConsumerBusy
    assert not (await one.acknowledge_durably(*got)).HasField("error"), "what it holds still counts"
    await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    assert isinstance(await attach(two, UPPER, "b", given.generation), pb.CommandSuccess)
    assert values_of(await two.deliveries(2)) == [b"2", b"3"]
    assert error_of(await attach(one, UPPER, "a", kept.generation, consumer_id=3)) == pb.ConsumerBusy


async def test_a_generation_that_is_over_cannot_attach_where_its_segment_was_another_s_since(
    world: World,
) -> None:
    await create(world, 2)
    one, two = await world.connect(), await world.connect()
    held = await register(one, "a")
    (moved,) = topics(await register(two, "b"))
    await two.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=77))
    again = await newest(one)
    assert topics(again) == [LOWER, UPPER]
    assert error_of(await attach(one, moved, "a", held.generation)) == pb.ConsumerBusy
    assert topics(await newest(one)) == [LOWER, UPPER], "a consumer that is refused hears what it reads"
    assert isinstance(await attach(one, moved, "a", again.generation), pb.CommandSuccess)


class CountingLeader:
    """Counts the consumers that the leader of the topic is asked about."""

    def __init__(self, controller: TopicController) -> None:
        self.asked: list[tuple[int, str]] = []
        self._admit = controller.admit
        controller.admit = self._count  # type: ignore[method-assign]

    async def _count(self, sub: str, request: AttachRequest) -> Admission:
        self.asked.append((request.segment_id, request.consumer_name))
        return await self._admit(sub, request)


async def test_the_owner_admits_a_consumer_by_its_assignment_without_asking_the_leader(world: World) -> None:
    await create(world, 2)
    one, two = await world.connect(), await world.connect()
    leader_calls = CountingLeader(await leader(world))
    held = await register(one, "a")
    answer = await attach(one, LOWER, "a", held.generation, opened_in=0)
    assert answer == pb.CommandSuccess(request_id=2, incarnation=0)
    given = await register(two, "b")
    assert isinstance(await attach(two, topics(given)[0], "b", given.generation), pb.CommandSuccess)
    assert leader_calls.asked == []


async def test_the_owner_asks_the_leader_about_what_its_roster_does_not_prove(world: World) -> None:
    await create(world, 1)
    one, two, three = await world.connect(), await world.connect(), await world.connect(version=M1)
    leader_calls = CountingLeader(await leader(world))
    held = await register(one, "a")
    for token, incarnation in ((held.generation + 1, 0), (held.generation - 1, 0), (held.generation, 9)):
        await attach(two, WHOLE, "a", token, opened_in=incarnation)
        await two.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    await attach(two, WHOLE, "b", held.generation)
    await attach(three, WHOLE, "a-seg-0", None)
    assert leader_calls.asked == [(0, "a"), (0, "a"), (0, "a"), (0, "b"), (0, "a-seg-0")]


async def test_after_a_seek_the_owner_asks_the_leader(world: World) -> None:
    await create(world, 1)
    one = await world.connect()
    controller = await leader(world)
    held = await register(one, "a")
    await attach(one, WHOLE, "a", held.generation)
    await controller.seek("stream", 0)
    leader_calls = CountingLeader(controller)
    for _ in range(2):
        assert isinstance(await attach(one, WHOLE, "a", held.generation), pb.CommandSuccess)
        await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    assert leader_calls.asked == [(0, "a")], "its answer brings the roster"


@pytest.mark.parametrize("version", ["Anabranch-Test", M1])
@pytest.mark.parametrize("evicted", [False, True])
async def test_a_subscribe_under_way_while_its_consumer_loses_the_segment(
    world: World, version: str, evicted: bool
) -> None:
    producer = await create(world, 2)
    control, data = [await world.connect(version=version) for _ in range(2)]
    other = await world.connect()
    restrict = world.broker.segments.restrict
    world.broker.segments.restrict = unreachable  # type: ignore[method-assign]
    held = await register(control, "a")
    world.broker.segments.restrict = restrict  # type: ignore[method-assign]
    controller = await leader(world)
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
    coming = asyncio.create_task(attach(data, UPPER, name, generation))
    await granted.wait()
    if evicted:
        await control.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=77))
    else:
        assert topics(await register(other, "b")) == [UPPER]
    go_on.set()
    if evicted or version != M1:
        assert error_of(await coming) == pb.ConsumerBusy
    else:
        assert isinstance(await coming, pb.CommandSuccess), "it would give up, so it may finish"
    await producer.publish_all([b"4"], first=4)
    await settle()
    assert data.has(Delivery) == []


async def test_plain_consumers_read_a_segment_only_without_registered_consumers(world: World) -> None:
    await create(world, 1)
    plain, member = await world.connect(), await world.connect()
    assert isinstance(await attach(plain, WHOLE, "plain", None), pb.CommandSuccess)
    assert len(await plain.deliveries(4)) == 4
    await plain.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    await register(member, "a")
    assert error_of(await attach(plain, WHOLE, "plain", None)) == pb.ConsumerBusy


async def test_clients_that_name_themselves_by_segment_are_fenced_too(world: World) -> None:
    await create(world, 1)
    control, stale, other = [await world.connect(version=M1) for _ in range(3)]
    await register(control, "a")
    assert isinstance(await attach(stale, WHOLE, "a-seg-0", None, permits=1), pb.CommandSuccess)
    await stale.deliveries(1)
    control.close()
    await asyncio.sleep(61)
    assert stale.has(pb.CommandCloseConsumer)
    assert error_of(await attach(stale, WHOLE, "a-seg-0", None)) == pb.ConsumerBusy
    await register(other, "b")
    assert isinstance(await attach(other, WHOLE, "b-seg-0", None), pb.CommandSuccess)
    assert len(await other.deliveries(4)) == 4


async def test_clients_that_miss_an_assignment_are_told_again_while_another_waits(world: World) -> None:
    await create(world, 2)
    one, two = await world.connect(version=M1), await world.connect(version=M1)
    held = await register(one, "a")
    given = await register(two, "b")
    assert topics(held) == [LOWER, UPPER]
    (moved,) = topics(given)
    await settle()
    one.inbox.clear()  # It drops what comes while it still attaches.
    for number, segment in enumerate((LOWER, UPPER), 1):
        name = f"a-seg-{number - 1}"
        assert isinstance(await attach(one, segment, name, None, consumer_id=number), pb.CommandSuccess)
    await settle()
    one.inbox.clear()
    coming = asyncio.create_task(attach(two, moved, f"b-seg-{moved[-1]}", None))
    assert moved not in topics(await newest(one))
    await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1 if moved == LOWER else 2))
    assert isinstance(await coming, pb.CommandSuccess)


async def test_a_client_that_comes_for_a_segment_when_it_is_another_s_is_let_in_and_out_again(
    world: World,
) -> None:
    await create(world, 2)
    one, two = await world.connect(version=M1), await world.connect(version=M1)
    held = await register(one, "a")
    (moved,) = topics(await register(two, "b"))
    assert topics(held) == [LOWER, UPPER]
    assert isinstance(await attach(two, moved, f"b-seg-{moved[-1]}", None), pb.CommandSuccess)
    await settle()
    one.inbox.clear()  # It drops what comes while it still attaches.
    async with asyncio.timeout(1):
        for number, segment in enumerate((LOWER, UPPER), 1):
            name = f"a-seg-{number - 1}"
            answer = await attach(one, segment, name, None, consumer_id=number)
            assert isinstance(answer, pb.CommandSuccess)
    assert moved not in topics(await newest(one))
    (closed,) = one.has(pb.CommandCloseConsumer)
    assert closed.consumer_id == (1 if moved == LOWER else 2)
    assert not two.has(pb.CommandCloseConsumer)


async def test_a_client_that_waits_for_its_turn_is_not_turned_away_for_want_of_a_leader(world: World) -> None:
    await create(world, 1)
    one, two = await world.connect(version=M1), await world.connect(version=M1)
    await attach(one, WHOLE, "plain", None)

    async def away(sub: str) -> None:
        raise NotLeaderError("no controller leads the topic here")

    (await leader(world)).remind = away  # type: ignore[method-assign]
    coming = asyncio.create_task(attach(two, WHOLE, "other", None))
    await settle()
    await one.request(pb.CommandCloseConsumer(request_id=0, consumer_id=1))
    assert isinstance(await coming, pb.CommandSuccess)


async def test_unsubscribing_on_a_segment_removes_the_subscription_from_the_topic(world: World) -> None:
    await create(world, 2)
    one, two = await world.connect(), await world.connect()
    controller = await leader(world)
    await one.subscribe(LOWER, "plain")
    await two.subscribe(UPPER, "plain")
    answer = await one.request(pb.CommandUnsubscribe(request_id=0, consumer_id=1))
    assert isinstance(answer, pb.CommandSuccess)
    assert one.has(pb.CommandCloseConsumer) == [], "its client would subscribe again"
    await settle()
    assert two.has(pb.CommandCloseConsumer)
    assert "plain" not in controller.subscriptions()
    for name in (LOWER, UPPER):
        segment = world.broker.logs.get(TopicName.parse(name))
        assert segment is not None
        assert "plain" not in segment.log.cursors


async def test_unsubscribing_is_refused_while_others_are_registered(world: World) -> None:
    await create(world, 1)
    member = await world.connect()
    held = await register(member, "a")
    await attach(member, WHOLE, "a", held.generation)
    await member.deliveries(4)
    answer = await member.request(pb.CommandUnsubscribe(request_id=0, consumer_id=1))
    assert error_of(answer) == pb.ConsumerBusy
    member.flow(10)
    await settle()
    assert member.has(pb.CommandCloseConsumer) == [], "and goes on reading"


async def test_a_seek_on_a_drained_segment_closes_its_children_again(world: World) -> None:
    await create(world, 1)
    plain, member = await world.connect(), await world.connect()
    controller = await leader(world)
    await attach(plain, WHOLE, "plain", None)
    got = await plain.deliveries(4)
    await controller.split(0)
    await plain.acknowledge_durably(*got)
    await settle()
    assert controller.subscriptions()["stream"].drained == (0,)
    answer = await plain.request(
        pb.CommandSeek(
            request_id=0,
            consumer_id=1,
            message_id=pb.MessageIdData(ledgerId=got[2].ledger, entryId=got[2].entry),
        )
    )
    assert isinstance(answer, pb.CommandSuccess)
    assert plain.has(pb.CommandCloseConsumer), "as for every seek"
    assert controller.subscriptions()["stream"].drained == ()
    held = await register(member, "a")
    assert topics(held) == [WHOLE]
    await attach(member, WHOLE, "a", held.generation)
    again = await member.deliveries(2)
    assert values_of(again) == [b"2", b"3"]
    await member.acknowledge_durably(*again)
    assert len((await newest(member)).segments) == 2

    past = pb.CommandSeek(request_id=0, consumer_id=1, message_publish_time=0)
    assert isinstance(await member.request(past), pb.CommandSuccess)
    assert topics(await newest(member)) == [WHOLE]
