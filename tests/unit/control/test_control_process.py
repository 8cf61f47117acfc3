"""A control process on the wire: layouts, lookups, groups and layout changes over topics of Pulsar."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.aio import TaskRegistry
from anabranch.control.drain_polls import DrainPolls
from anabranch.control.pulsar_segments import PulsarSegments
from anabranch.model.drains import ALL
from anabranch.model.names import Place, TopicName
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.cluster.pulsar import URL, SimPulsar, SimTopic
from tests.harness.admin import Admin
from tests.harness.control_plane import ControlProcesses
from tests.harness.segments import NAME
from tests.harness.wire import error_of, look_up, register_consumer, settle

ORDERS = TopicName.parse(NAME)
WHOLE = TopicName.parse("persistent://public/default/orders.segment-0000-ffff-0")
LOWER = TopicName.parse("persistent://public/default/orders.segment-0000-7fff-1")
UPPER = TopicName.parse("persistent://public/default/orders.segment-8000-ffff-2")


async def test_a_layout_names_the_topics_of_pulsar_and_their_brokers(control: ControlProcesses) -> None:
    client = await control.connect()
    update = await look_up(client)
    (segment,) = update.dag.segments
    assert (segment.legacy_topic_name, segment.keeps_range) == (str(WHOLE), True)
    await settle()
    update = (client.has(pb.CommandScalableTopicUpdate) or [update])[-1]
    assert [owner.broker_url for owner in update.dag.segment_brokers] == [URL]
    assert update.dag.controller_broker_url == control[0].url


async def test_a_segment_is_a_topic_that_keeps_its_messages(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(ORDERS)
    made = control.pulsar.found[WHOLE]
    marks = {"anabranch.topic": NAME, "anabranch.installation": "", "anabranch.ready": "true"}
    assert made.properties == marks
    assert made.deduplicates
    assert made.retention_minutes == -1


async def test_a_split_creates_children_with_subscriptions_and_terminates_the_pa(
    control: ControlProcesses,
) -> None:
    client = await control.connect()
    await look_up(client)
    await register_consumer(client, "a")
    await (await control.controller()).split(0)
    found = control.pulsar.found
    assert {topic: state.terminated for topic, state in found.items()} == {
        WHOLE: True,
        LOWER: False,
        UPPER: False,
    }
    assert [found[topic].cursors for topic in (LOWER, UPPER)] == [{"stream": 0}] * 2


async def test_appends_that_never_complete_are_ended_by_an_unload(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(ORDERS)
    control.pulsar.found[WHOLE].pending_appends = 3
    await (await control.controller()).split(0)
    assert control.pulsar.found[WHOLE].unloads == 1


async def test_children_are_assigned_when_pulsar_shows_that_the_parent_is_drained(
    control: ControlProcesses,
) -> None:
    client = await control.connect()
    await look_up(client)
    first = await register_consumer(client, "a")
    assert [s.segment_topic for s in first.assignment.segments] == [str(WHOLE)]
    control.pulsar.found[WHOLE].times_ms += [1, 2]
    await (await control.controller()).split(0)
    await asyncio.sleep(5)
    updates = client.has(pb.CommandScalableTopicAssignmentUpdate)
    assert all([s.segment_topic for s in u.assignment.segments] == [str(WHOLE)] for u in updates)
    control.pulsar.found[WHOLE].cursors["stream"] = 2
    await asyncio.sleep(5)
    last = client.has(pb.CommandScalableTopicAssignmentUpdate)[-1]
    assert sorted(s.segment_topic for s in last.assignment.segments) == [str(LOWER), str(UPPER)]


async def test_entries_that_were_only_sent_to_a_consumer_are_not_drained() -> None:
    """Pulsar's quick backlog leaves them out; only the precise one counts what is not acknowledged."""
    pulsar, tasks = SimPulsar(), TaskRegistry()
    segments = PulsarSegments(pulsar, DrainPolls(tasks))
    parent = pulsar.found[WHOLE] = SimTopic({}, [1, 2], {"stream": 0}, sent={"stream": 2}, terminated=True)
    place = Place(TopicName.parse("segment://public/default/orders/0000-ffff-0"), 0)
    assert await segments.backlog(place, "stream") == 0
    assert await segments.drained(place, "stream") == ()
    parent.cursors["stream"] = 2
    assert await segments.drained(place, "stream") == ALL
    await tasks.stop()


async def test_no_segment_is_shared_by_buckets(control: ControlProcesses) -> None:
    client, other = await control.connect(), await control.connect()
    await look_up(client)
    await register_consumer(client, "a")
    second = await register_consumer(other, "b")
    assert list(second.assignment.segments) == []


async def test_a_queue_subscription_is_made_on_all_segments_without_a_member(
    control: ControlProcesses,
) -> None:
    await control[0].controllers.create_topic(ORDERS, 2)
    client = await control.connect()
    answer = await register_consumer(client, "", subscription="work", as_queue=True)
    assert not answer.HasField("error")
    assert [topic.cursors for topic in control.pulsar.found.values()] == [{"work": 0}] * 2
    stats = await (await control.controller()).stats()
    assert stats["subscriptions"]["work"]["type"] == "QUEUE"  # type: ignore[index]


async def test_a_lookup_names_the_broker_of_pulsar(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(ORDERS)
    client = await control.connect()
    for topic in (str(WHOLE), "segment://public/default/orders/0000-ffff-0"):
        found = await client.request(pb.CommandLookupTopic(topic=topic, request_id=0))
        assert found.brokerServiceUrl == URL
    leader = await client.request(pb.CommandLookupTopic(topic=NAME, request_id=0))
    assert leader.brokerServiceUrl == control[0].url


@pytest.mark.parametrize("topic", [str(WHOLE), "segment://public/default/orders/0000-ffff-0"])
async def test_a_control_process_takes_no_messages(control: ControlProcesses, topic: str) -> None:
    await control[0].controllers.create_topic(ORDERS)
    client = await control.connect()
    assert error_of(await client.producer(topic)) == pb.NotAllowedError
    assert error_of(await client.subscribe(topic, "sub")) == pb.NotAllowedError
    assert list(control[0].stores.names()) == []


async def test_clients_of_patterns_poll_the_classic_topics_of_the_cluster(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(ORDERS)
    tea = TopicName.parse("persistent://public/default/tea")
    await control.pulsar.create(tea, {})
    client = await control.connect()
    assert client.pump is not None
    assert isinstance(client.pump.machine, ClientMachine)
    features = client.pump.machine.server_features
    assert features.supports_scalable_topics
    assert not features.supports_topic_watchers
    watch = pb.CommandWatchTopicList(
        request_id=0, watcher_id=1, namespace="public/default", topics_pattern="public/default/.*"
    )
    assert error_of(await client.request(watch)) == pb.NotAllowedError
    question = pb.CommandGetTopicsOfNamespace(request_id=0, namespace="public/default")
    found = await client.request(question)
    assert (list(found.topics), found.changed) == ([str(tea)], True)
    question.topics_hash = found.topics_hash
    again = await client.request(question)
    assert (list(again.topics), again.changed) == ([], False)
    question.mode = pb.CommandGetTopicsOfNamespace.ALL
    assert error_of(await client.request(question)) == pb.NotAllowedError


@pytest.mark.parametrize("control", [2], indirect=True)
async def test_another_process_takes_the_topics_of_a_dead_one_over(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(ORDERS)
    await control[0].controllers.ensure_led(ORDERS)
    leader = control.leader_of(ORDERS)
    control.kill(leader)
    await settle()
    other = control[1 - leader]
    await asyncio.sleep(20)
    layout = await (await other.controllers.lead(ORDERS)).split(0)
    assert len(layout.active) == 2
    assert control.pulsar.found[WHOLE].terminated


async def test_a_deleted_topic_leaves_nothing_at_pulsar(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(ORDERS)
    await (await control.controller()).split(0)
    control.pulsar.found[UPPER].clients = 1
    await control[0].controllers.delete_topic(ORDERS)
    await asyncio.sleep(10)
    assert list(control.pulsar.found) == [UPPER]
    control.pulsar.found[UPPER].clients = 0
    await asyncio.sleep(20)
    assert control.pulsar.found == {}


async def test_a_client_learns_that_the_logs_number_no_messages(control: ControlProcesses) -> None:
    async with control.client() as client:
        assert not await client.numbers_messages()


async def test_a_subscription_without_a_named_start_begins_at_the_earliest_message(
    control: ControlProcesses,
) -> None:
    await control[0].controllers.create_topic(ORDERS)
    control.pulsar.found[WHOLE].times_ms += [1, 2]
    client = await control.connect(version="Pulsar-Java-v5.0.0-M1")
    await client.request(
        pb.CommandScalableTopicSubscribe(
            request_id=0,
            topic=NAME,
            subscription="java",
            consumer_name="a",
            consumer_id=1,
            consumer_type=pb.STREAM,
        )
    )
    assert control.pulsar.found[WHOLE].cursors == {"java": 0}


async def test_other_buckets_are_refused_and_change_nothing(control: ControlProcesses) -> None:
    await control[0].controllers.create_topic(ORDERS)
    path = "/admin/v2/scalable/public/default/orders/rebucket/0?bucketCount=8"
    answer = await Admin(control).ask("POST", path)
    assert answer.status == 405
    assert "does not share a segment by buckets" in answer.body.decode()
    assert list(control.pulsar.found) == [WHOLE]
    assert not control.pulsar.found[WHOLE].terminated


async def test_the_log_of_a_sink_is_created_with_its_subscription_on_first_use(
    control: ControlProcesses,
) -> None:
    log = TopicName.parse("persistent://public/default/__sink-copy-rows")
    client = await control.connect()
    await look_up(client, str(log), session=1, create_if_missing=False)
    assert log not in control.pulsar.found
    await look_up(client, str(log), session=2, create_if_missing=True)
    assert control.pulsar.found[log].cursors == {"sink": 0}
    # A creation that died half-way is completed.
    control.pulsar.found[log].cursors.clear()
    control.pulsar.found[log].times_ms.append(1)
    await look_up(client, str(log), session=3, create_if_missing=True)
    assert control.pulsar.found[log].cursors == {"sink": 0}


async def test_no_other_classic_topic_is_created_by_its_first_use(control: ControlProcesses) -> None:
    client = await control.connect()
    await look_up(client, "persistent://public/default/orders", create_if_missing=True)
    assert control.pulsar.found == {}


@pytest.mark.parametrize("control", [2], indirect=True)
async def test_a_process_that_has_just_started_takes_the_home_of_a_lost_one_at_once(
    control: ControlProcesses,
) -> None:
    await control.restart(1)
    control.kill(0)
    await asyncio.sleep(1.0)
    assert control[1].stores.is_open(0)
