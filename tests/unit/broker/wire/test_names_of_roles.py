"""A role cannot take the producer name, exclusive access or consumer name of another role."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from anabranch.model.names import TopicName
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.fakes.storage import SlowStorage
from tests.harness.cluster import Brokers
from tests.harness.rights import connect_as
from tests.harness.security import SECURE
from tests.harness.segments import LOWER, NAME, WHOLE, attach_stream, split_segment
from tests.harness.wire import TOPIC, WireClient, error_of, look_up, register_consumer, settle

pytestmark = pytest.mark.brokers(**SECURE)


async def close_producer(client: WireClient, producer_id: int = 1) -> None:
    await client.request(pb.CommandCloseProducer(producer_id=producer_id, request_id=0))


async def test_a_connected_producer_keeps_its_name_from_other_roles(brokers: Brokers) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await alice.producer(producer_name="p")
    refused = await bob.producer(producer_name="p")
    assert error_of(refused) == pb.ProducerBusy
    assert "alice" not in refused.message
    assert isinstance(await bob.producer(producer_name="q"), pb.CommandProducerSuccess)


async def test_a_name_stays_with_its_role_after_the_producer_left(brokers: Brokers) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await alice.producer(producer_name="p")
    await alice.publish_all([b"0", b"1"])
    await close_producer(alice)
    assert error_of(await bob.producer(producer_name="p")) == pb.ProducerBusy
    back = await alice.producer(producer_name="p")
    assert back.last_sequence_id == 1


async def test_a_name_stays_with_its_role_after_a_restart(brokers: Brokers) -> None:
    alice = await connect_as(brokers, "alice")
    await alice.producer(producer_name="p")
    await alice.publish_all([b"0"])
    await brokers.restart()
    bob = await connect_as(brokers, "bob")
    assert error_of(await bob.producer(producer_name="p")) == pb.ProducerBusy
    alice = await connect_as(brokers, "alice")
    assert (await alice.producer(producer_name="p")).last_sequence_id == 0


@pytest.mark.brokers(storage=SlowStorage)
async def test_a_name_stays_with_its_role_while_its_entries_become_durable(brokers: Brokers) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await alice.producer(producer_name="p")
    alice.publish(b"0", 0)
    await asyncio.sleep(0.01)
    alice.close()
    await asyncio.sleep(0.01)
    assert len(brokers[0].connections) == 1, "the entry is on its way to the disk"
    assert error_of(await bob.producer(producer_name="p")) == pb.ProducerBusy


async def test_a_name_under_which_nothing_was_stored_is_free_again(brokers: Brokers) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await alice.producer(producer_name="p")
    await close_producer(alice)
    assert isinstance(await bob.producer(producer_name="p"), pb.CommandProducerSuccess)


async def test_a_made_up_name_belongs_to_its_role_too(brokers: Brokers) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    made = (await alice.producer()).producer_name
    await alice.publish_all([b"0"])
    await close_producer(alice)
    assert error_of(await bob.producer(producer_name=made)) == pb.ProducerBusy


@pytest.mark.brokers(authentication=False)
async def test_the_first_role_goes_on_with_a_name_from_before_authentication(brokers: Brokers) -> None:
    anyone = await brokers.connect()
    await anyone.producer(producer_name="p")
    await anyone.publish_all([b"0", b"1"])
    brokers.config = dataclasses.replace(brokers.config, authentication=True)
    await brokers.restart()
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    assert (await alice.producer(producer_name="p")).last_sequence_id == 1
    alice.publish(b"again", 1)
    assert (await alice.receipt()).entry == NO_ID
    await alice.publish_all([b"2"], first=2)
    await close_producer(alice)
    assert error_of(await bob.producer(producer_name="p")) == pb.ProducerBusy


async def test_without_authentication_every_name_is_open_again(brokers: Brokers) -> None:
    alice = await connect_as(brokers, "alice")
    await alice.producer(producer_name="p")
    await alice.publish_all([b"0"])
    brokers.config = dataclasses.replace(brokers.config, authentication=False)
    await brokers.restart()
    anyone = await brokers.connect()
    assert isinstance(await anyone.producer(producer_name="p"), pb.CommandProducerSuccess)


async def test_children_of_a_segment_know_to_which_role_a_name_belongs(brokers: Brokers) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await look_up(alice)
    await alice.producer(WHOLE, producer_name="p")
    await alice.publish_all([b"0", b"1"])
    await split_segment(brokers)
    child = "segment://public/default/orders/0000-7fff-1"
    assert error_of(await bob.producer(child, producer_name="p")) == pb.ProducerBusy
    assert (await alice.producer(child, 2, producer_name="p")).last_sequence_id == 1


async def test_a_foreign_producer_of_the_same_name_suppresses_nothing_after_a_merge(brokers: Brokers) -> None:
    """Two roles use one name on different segments; a merge keeps their sequence ids apart."""
    await brokers[0].controllers.create_topic(TopicName.parse(NAME), 2)
    upper = "segment://public/default/orders/8000-ffff-1"
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await alice.producer(LOWER, producer_name="p")
    await alice.publish_all([b"0"])
    await bob.producer(upper, producer_name="p")
    await bob.publish_all([b"x"], first=1000)
    controller = await brokers[0].controllers.controller(TopicName.parse(NAME))
    await controller.merge([0, 1])
    merged = "segment://public/default/orders/0000-ffff-2"
    await bob.producer(merged, 2, producer_name="p")
    assert (await alice.producer(merged, 2, producer_name="p")).last_sequence_id == 0, "neither is kept out"
    alice.publish(b"1", 1, producer_id=2)
    assert (await alice.receipt()).entry != NO_ID


async def test_a_role_learns_nothing_of_the_sequence_ids_of_another(brokers: Brokers) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await look_up(alice)
    await alice.producer(WHOLE, producer_name="p")
    await alice.publish_all([b"0", b"1"])
    settled = pb.KeyValue(key="anabranch.settle", value="true")
    asked = await bob.producer(WHOLE, producer_name="p", metadata=[settled])
    assert asked.last_sequence_id == asked.own_sequence_id == -1


@pytest.mark.parametrize("held", [pb.Shared, pb.Exclusive, pb.WaitForExclusive])
async def test_a_role_does_not_fence_the_producers_of_another(brokers: Brokers, held: int) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await alice.producer(producer_name="p", producer_access_mode=held)
    refused = await bob.producer(producer_access_mode=pb.ExclusiveWithFencing)
    assert error_of(refused) == pb.ProducerFenced
    assert "alice" not in refused.message
    await alice.publish_all([b"still mine"])


async def test_a_foreign_producer_that_waits_is_not_fenced_and_prevents_no_fencing(
    brokers: Brokers,
) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await bob.producer(producer_access_mode=pb.Exclusive)
    await alice.producer(producer_access_mode=pb.WaitForExclusive)
    await bob.producer(producer_id=2, producer_access_mode=pb.WaitForExclusive)
    fencing = await bob.producer(producer_id=3, producer_access_mode=pb.ExclusiveWithFencing)
    assert fencing.topic_epoch == 1
    assert {(await bob.expect(pb.CommandCloseProducer)).producer_id for _ in range(2)} == {1, 2}
    await settle()
    assert not alice.inbox
    await close_producer(bob, 3)
    assert (await alice.expect(pb.CommandProducerSuccess)).topic_epoch == 2


async def test_a_role_fences_its_own_producers(brokers: Brokers) -> None:
    one, two = await connect_as(brokers, "alice"), await connect_as(brokers, "alice")
    await one.producer(producer_access_mode=pb.Exclusive)
    assert (await two.producer(producer_access_mode=pb.ExclusiveWithFencing)).topic_epoch == 1
    assert (await one.expect(pb.CommandCloseProducer)).request_id == NO_ID


async def test_a_role_cannot_pass_as_the_exclusive_producer_of_another(brokers: Brokers) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    first = await alice.producer(producer_access_mode=pb.Exclusive)
    await brokers.restart()
    bob = await connect_as(brokers, "bob")
    taken = await bob.producer(producer_access_mode=pb.Exclusive, topic_epoch=first.topic_epoch)
    assert taken.topic_epoch == first.topic_epoch + 1
    await close_producer(bob)
    alice = await connect_as(brokers, "alice")
    back = await alice.producer(producer_access_mode=pb.Exclusive, topic_epoch=first.topic_epoch)
    assert error_of(back) == pb.ProducerFenced, "it has to learn that another producer wrote meanwhile"


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Failover, pb.CommandSubscribe.Key_Shared])
async def test_a_classic_consumer_keeps_its_name_from_other_roles(brokers: Brokers, kind: int) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await alice.subscribe(TOPIC, "sub", kind, name="c")
    refused = await bob.subscribe(TOPIC, "sub", kind, name="c")
    assert error_of(refused) == pb.ConsumerBusy
    assert "alice" not in refused.message
    assert isinstance(await bob.subscribe(TOPIC, "sub", kind, name="d"), pb.CommandSuccess)
    again = await connect_as(brokers, "alice")
    assert isinstance(await again.subscribe(TOPIC, "sub", kind, name="c"), pb.CommandSuccess)


async def test_names_in_a_shared_subscription_are_free(brokers: Brokers) -> None:
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    kind = pb.CommandSubscribe.Shared
    await alice.subscribe(TOPIC, "sub", kind, name="c")
    assert isinstance(await bob.subscribe(TOPIC, "sub", kind, name="c"), pb.CommandSuccess)


def registration_error(answer: Any) -> int:
    assert isinstance(answer, pb.CommandScalableTopicSubscribeResponse)
    assert answer.HasField("error"), "the name was given away"
    assert "alice" not in answer.message
    assert "host" not in answer.message
    return answer.error


async def test_a_registered_name_stays_with_its_role_through_the_grace_period(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(TopicName.parse(NAME), 1)
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await register_consumer(alice, "c", instance=7)
    assert registration_error(await register_consumer(bob, "c", instance=7)) == pb.ConsumerBusy
    alice.close()
    await settle()
    assert registration_error(await register_consumer(bob, "c", instance=7)) == pb.ConsumerBusy
    alice = await connect_as(brokers, "alice")
    assert not (await register_consumer(alice, "c", instance=7)).HasField("error")


async def test_a_registered_name_is_free_when_the_grace_period_is_over(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(TopicName.parse(NAME), 1)
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    await register_consumer(alice, "c")
    await alice.request(pb.CommandScalableTopicUnsubscribe(request_id=0, consumer_id=1))
    assert not (await register_consumer(bob, "c")).HasField("error")


async def test_a_role_cannot_attach_as_the_registered_consumer_of_another(brokers: Brokers) -> None:
    await brokers[0].controllers.create_topic(TopicName.parse(NAME), 1)
    alice, bob = await connect_as(brokers, "alice"), await connect_as(brokers, "bob")
    given = (await register_consumer(alice, "c")).assignment
    for generation in (given.generation, None):
        assert error_of(await attach_stream(bob, WHOLE, "c", generation)) == pb.ConsumerBusy
    assert isinstance(await attach_stream(alice, WHOLE, "c", given.generation), pb.CommandSuccess)


@pytest.mark.brokers(count=2)
async def test_names_of_consumers_are_bound_at_another_broker_and_after_a_takeover(brokers: Brokers) -> None:
    name = TopicName.parse(NAME)
    await brokers[0].controllers.create_topic(name, 1)
    leader = brokers.leader_of(name)
    alice, bob = await connect_as(brokers, "alice", 1 - leader), await connect_as(brokers, "bob", 1 - leader)
    await register_consumer(alice, "c")
    assert registration_error(await register_consumer(bob, "c")) == pb.ConsumerBusy
    alice.close()
    brokers.kill(leader)
    for _ in range(30):
        answer = await register_consumer(bob, "c")
        if not answer.HasField("error") or answer.error != pb.ServiceNotReady:
            break
        await settle()
    assert registration_error(answer) == pb.ConsumerBusy
