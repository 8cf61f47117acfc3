"""Consumers that register through a broker that does not lead their topic."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.ports.leader import Membership
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import MetadataError
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import Brokers
from tests.harness.wire import register_consumer, settle

pytestmark = pytest.mark.brokers(count=2)

ORDERS = TopicName.parse("topic://public/default/orders")


def sessions_of_peers(brokers: Brokers) -> int:
    """Sessions that the brokers have open at each other."""
    known = (connection for broker in brokers.living.values() for connection in broker.connections)
    return sum(len(connection.pushes.sessions) for connection in known if connection.is_peer)


def given(assignment: pb.ScalableConsumerAssignment) -> list[int]:
    return sorted(segment.segment_id for segment in assignment.segments)


async def hand_over() -> None:
    """Let the stores of a broker that went or came find their owners."""
    await asyncio.sleep(10.0)


async def test_a_consumer_registers_with_any_broker_and_hears_of_every_change(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    leader = brokers.leader_of(ORDERS)
    far, near = await brokers.connect(1 - leader), await brokers.connect(leader)
    assert given((await register_consumer(far, "far")).assignment) == [0, 1]
    assert len(given((await register_consumer(near, "near")).assignment)) == 1
    update = await far.expect(pb.CommandScalableTopicAssignmentUpdate)
    assert len(given(update.assignment)) == 1
    near.close()
    again = await brokers.connect(1 - leader)
    await asyncio.sleep(0.1)
    assert len(given((await register_consumer(again, "near")).assignment)) == 1, "its former segment"
    left = await again.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=1))
    assert isinstance(left, pb.CommandSuccess)
    update = await far.expect(pb.CommandScalableTopicAssignmentUpdate)
    assert given(update.assignment) == [0, 1]


async def test_a_name_is_free_again_when_its_connection_to_any_broker_is_lost(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    far = 1 - brokers.leader_of(ORDERS)
    first = await brokers.connect(far)
    await register_consumer(first, "c")
    busy = await register_consumer(await brokers.connect(far), "c")
    assert busy.error == pb.ConsumerBusy
    first.close()
    await asyncio.sleep(0.1)
    second = await brokers.connect(far)
    assert given((await register_consumer(second, "c")).assignment) == [0, 1]
    # The same client may register again at once, for another start of the same consumer.
    assert given((await register_consumer(second, "c")).assignment) == [0, 1]
    assert sessions_of_peers(brokers) == 1
    left = await second.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=1))
    assert isinstance(left, pb.CommandSuccess)
    assert sessions_of_peers(brokers) == 0, "the session of a consumer that left is forgotten"


@pytest.mark.parametrize("first", ["near", "far"])
async def test_a_consumer_that_comes_back_through_another_broker_takes_its_name_over_at_once(
    brokers: Brokers, first: str
) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    leader = brokers.leader_of(ORDERS)
    at = [leader, 1 - leader] if first == "near" else [1 - leader, leader]
    old, new = await brokers.connect(at[0]), await brokers.connect(at[1])
    await register_consumer(old, "c", 1, instance=7)
    assert (await register_consumer(new, "c", 2, instance=8)).error == pb.ConsumerBusy
    assert given((await register_consumer(new, "c", 2, instance=7)).assignment) == [0, 1]
    assert (await register_consumer(old, "c", 1, instance=7)).error == pb.ConsumerBusy, "it has come later"
    old.close()
    await (await brokers[leader].controllers.controller(ORDERS)).split(0)
    update = await new.expect(pb.CommandScalableTopicAssignmentUpdate)
    assert given(update.assignment) == [1, 2, 3]


@pytest.mark.parametrize("number", [0, 1])
async def test_a_member_is_sent_to_hear_that_its_subscription_was_deleted_and_others_read_nothing(
    brokers: Brokers, number: int
) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    ours, java = await brokers.connect(number), await brokers.connect(number, "Pulsar-Java-v5.0.0-M1")
    registered = await register_consumer(ours, "ours", instance=7)
    assert registered.HasField("incarnation")
    assert not (await register_consumer(java, "java")).HasField("incarnation"), "theirs would skip it"
    await ours.expect(pb.CommandScalableTopicAssignmentUpdate)
    controller = await brokers[1 - number].controllers.controller(ORDERS)
    await controller.delete_subscription("stream", force=True)
    for client in (ours, java):
        assert given((await client.expect(pb.CommandScalableTopicAssignmentUpdate)).assignment) == []
    assert (await ours.expect(pb.CommandCloseConsumer)).consumer_id == 1
    refused = await register_consumer(ours, "ours", instance=7, opened_in=registered.incarnation)
    assert refused.error == pb.SubscriptionNotFound
    await settle()
    assert java.inbox == []
    assert not java.hung_up
    other = registered.incarnation + 1
    assert given((await register_consumer(ours, "ours", instance=7, opened_in=other)).assignment) == [0, 1]


async def test_a_leader_that_gives_its_store_back_sends_its_consumers_to_the_next(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    home = brokers.leader_of(ORDERS)
    await brokers.stop(home)
    await hand_over()
    foster = await brokers.connect(1 - home)
    await register_consumer(foster, "c")
    await brokers.start(home)
    assert (await foster.expect(pb.CommandCloseConsumer)).consumer_id == 1
    await hand_over()
    assert brokers.leader_of(ORDERS) == home
    assert given((await register_consumer(foster, "c")).assignment) == [0, 1]


@pytest.mark.parametrize("version", ["Anabranch-Test", "Pulsar-Java-v5.0.0-M1"])
async def test_consumers_come_back_when_their_leader_goes_and_find_the_next_one(
    brokers: Brokers, version: str
) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    leader = brokers.leader_of(ORDERS)
    far = await brokers.connect(1 - leader, version)
    await register_consumer(far, "far")
    await brokers.stop(leader)
    await hand_over()
    if version.startswith("Pulsar"):
        assert far.hung_up
        far = await brokers.connect(1 - leader, version)
    else:
        assert (await far.expect(pb.CommandCloseConsumer)).consumer_id == 1
    assert given((await register_consumer(far, "far")).assignment) == [0, 1]
    assert brokers.leader_of(ORDERS) == 1 - leader


async def test_a_registration_ends_with_the_connection_between_the_brokers_and_is_made_again(
    brokers: Brokers,
) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    leader = brokers.leader_of(ORDERS)
    far = await brokers.connect(1 - leader)
    await register_consumer(far, "c")
    for connection in list(brokers[leader].connections):
        if connection.is_peer:
            connection.hang_up()
    assert (await far.expect(pb.CommandCloseConsumer)).consumer_id == 1
    assert given((await register_consumer(far, "c")).assignment) == [0, 1]
    assert not far.hung_up


@pytest.mark.parametrize("near", [True, False])
async def test_a_consumer_whose_leave_failed_does_not_stay_a_member(
    brokers: Brokers, near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await brokers[0].controllers.create_topic(ORDERS, 2)
    leader = brokers.leader_of(ORDERS)
    at = leader if near else 1 - leader
    client = await brokers.connect(at)
    await register_consumer(client, "c")

    async def fail(self: TopicController, membership: Membership) -> None:
        raise MetadataError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(TopicController, "leave", fail)
        left = await client.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=1))
    assert left.error == pb.MetadataError
    await settle()
    again = await register_consumer(await brokers.connect(at), "c")
    assert given(again.assignment) == [0, 1]
    assert sessions_of_peers(brokers) == (0 if near else 1)
