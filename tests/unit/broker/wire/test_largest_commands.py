"""The largest legal form of each command keeps the event loop for a few milliseconds at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from anabranch.broker.serving.subscription.acknowledging import SLICE_IDS
from anabranch.broker.serving.subscription.subscription import Subscription
from anabranch.model.ranges import HASH_SLOTS
from anabranch.protocol import commands
from anabranch.protocol.claims import ENTRY_MESSAGES_MAX
from anabranch.protocol.commands import Delivery
from anabranch.protocol.frames import build_entry
from anabranch.protocol.limits import ACK_WORDS_MAX, COMMAND_BYTES_MAX, HASH_RANGES_MAX, IDS_MAX, LIMITS
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess
from tests.harness.cluster import Brokers
from tests.harness.largest import command_with
from tests.harness.steps import longest_step
from tests.harness.wire import TOPIC, WireClient, error_of, settle, single

STEP_CPU_S = 0.1
"""Most CPU time of one callback of a broker: five times what it takes on a quiet machine."""

SHARED = pb.CommandSubscribe.Shared
pytestmark = pytest.mark.brokers(max_unacked_per_consumer=0, max_unacked_per_subscription=0)


def _useful(command: Message) -> Message:
    """Give a command names that exist, so that it is carried out and not refused for them."""
    for name, value in (("topic", TOPIC), ("subscription", "other"), ("namespace", "public/default")):
        field = command.DESCRIPTOR.fields_by_name.get(name)
        if (
            field is not None
            and field.message_type is None
            and not getattr(command, name).startswith("s" * 100)
        ):
            setattr(command, name, value)
    if isinstance(command, pb.CommandSubscribe):
        command.subType = pb.CommandSubscribe.Key_Shared
        command.keySharedMeta.keySharedMode = pb.STICKY
    return command


@pytest.mark.parametrize("field", sorted(set(LIMITS) - {"CommandPeerCall.arguments"}))
async def test_a_command_with_a_field_at_its_limit_is_short_work(
    field: str, brokers: Brokers, loop: SimLoop
) -> None:
    client, other = await brokers.connect(), await brokers.connect()
    await client.subscribe(kind=SHARED)
    await client.producer()
    with longest_step(loop) as longest:
        client.send(_useful(command_with(field)))
        await settle()
        await other.request(pb.CommandLookupTopic(topic=TOPIC, request_id=0))
    assert longest.cpu_s < STEP_CPU_S


async def _hold(brokers: Brokers, count: int) -> tuple[WireClient, list[pb.MessageIdData]]:
    """Let a Shared consumer receive this many entries; its client, and the ids."""
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=SHARED, permits=count)
    entry = single(b"v", 0)
    for number in range(count):
        client.publish(b"", number, entry=entry)
    await settle()
    got = client.has(Delivery)
    client.inbox.clear()
    assert len(got) == count
    return client, [pb.MessageIdData(ledgerId=one.ledger, entryId=one.entry) for one in got]


def _ack(ids: list[pb.MessageIdData], **options: Any) -> pb.CommandAck:
    return pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids, **options)


async def _backlog(client: WireClient) -> int:
    client.send(pb.CommandConsumerStats(consumer_id=1, request_id=77))
    return (await client.expect(pb.CommandConsumerStatsResponse)).msgBacklog


async def test_the_longest_ack_is_carried_out_in_slices(brokers: Brokers, loop: SimLoop) -> None:
    client, ids = await _hold(brokers, IDS_MAX)
    with longest_step(loop) as longest:
        client.send(_ack(ids, request_id=5))
        # A later command of the connection sees the whole ACK.
        assert await _backlog(client) == 0
    assert longest.cpu_s < STEP_CPU_S
    assert not (await client.expect(pb.CommandAckResponse)).HasField("error")


async def _act_during_ack(brokers: Brokers, loop: SimLoop, act: Callable[[], None]) -> tuple[int, WireClient]:
    """Send an ACK of five slices and call `act` after two; the backlog at the end, and the client."""
    client, ids = await _hold(brokers, 5 * SLICE_IDS)
    seen: list[int] = []

    def watch(process: SimProcess | None, step: Callable[[], None]) -> None:
        step()
        left = _subscription(brokers).backlog
        if left not in seen:
            seen.append(left)
            if left == 3 * SLICE_IDS:
                act()

    loop.on_step = watch
    client.send(_ack(ids, request_id=5))
    await settle()
    loop.on_step = None
    # Other callbacks run between two slices.
    assert seen == [SLICE_IDS * number for number in range(5, seen[-1] // SLICE_IDS - 1, -1)]
    return seen[-1], client


def _subscription(brokers: Brokers) -> Subscription:
    (log,) = brokers[0].logs.served
    return log.subscriptions["sub"]


async def test_others_are_served_between_the_slices_of_an_ack(brokers: Brokers, loop: SimLoop) -> None:
    left, client = await _act_during_ack(brokers, loop, lambda: None)
    assert left == 0
    assert not (await client.expect(pb.CommandAckResponse)).HasField("error")


async def test_an_ack_of_a_consumer_that_is_detached_during_it_is_refused(
    brokers: Brokers, loop: SimLoop
) -> None:
    left, client = await _act_during_ack(brokers, loop, lambda: _subscription(brokers).close_consumers())
    assert left == 3 * SLICE_IDS
    assert (await client.expect(pb.CommandAckResponse)).error == pb.ConsumerNotFound


async def test_a_connection_that_is_lost_during_an_ack_ends_it(brokers: Brokers, loop: SimLoop) -> None:
    left, client = await _act_during_ack(brokers, loop, lambda: next(iter(brokers[0].connections)).lost())
    assert left == 3 * SLICE_IDS
    assert not client.has(pb.CommandAckResponse)


@pytest.mark.parametrize("by_id", [True, False])
async def test_the_longest_redelivery_is_carried_out_in_slices(
    by_id: bool, brokers: Brokers, loop: SimLoop
) -> None:
    client, ids = await _hold(brokers, IDS_MAX)
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids if by_id else ())
    with longest_step(loop) as longest:
        client.send(command)
        await settle()
    assert longest.cpu_s < STEP_CPU_S
    assert not next(iter(_subscription(brokers).consumers)).outstanding
    client.flow(2)
    again = await client.deliveries(2)
    assert [(one.entry, one.redelivery_count) for one in again] == [(ids[0].entryId, 1), (ids[1].entryId, 1)]


async def test_all_that_a_closed_consumer_held_goes_to_the_others(brokers: Brokers, loop: SimLoop) -> None:
    client, ids = await _hold(brokers, IDS_MAX)
    other = await brokers.connect()
    await other.subscribe(kind=SHARED, consumer_id=2, permits=2)
    with longest_step(loop) as longest:
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0))
        await settle()
    assert longest.cpu_s < STEP_CPU_S
    assert [one.entry for one in await other.deliveries(2)] == [ids[0].entryId, ids[1].entryId]
    assert len(next(iter(_subscription(brokers).consumers)).outstanding) == 2


def _entry(count: int) -> bytes:
    """An entry that claims many messages; the broker never opens the payload."""
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=count,
        compression=pb.ZLIB,
        uncompressed_size=6 * count,
    )
    return build_entry(metadata.SerializeToString(), bytes(count // 50))


async def test_the_longest_ack_sets_are_short_work(brokers: Brokers, loop: SimLoop) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.subscribe(kind=SHARED)
    entries = COMMAND_BYTES_MAX // (2 * ACK_WORDS_MAX + 64)
    for number in range(entries):
        client.publish(b"", number, entry=_entry(ENTRY_MESSAGES_MAX), messages=ENTRY_MESSAGES_MAX)
        client.flow(ENTRY_MESSAGES_MAX)
    got = await client.deliveries(entries)
    words = [1] * ACK_WORDS_MAX
    ids = [pb.MessageIdData(ledgerId=one.ledger, entryId=one.entry, ack_set=words) for one in got]
    with longest_step(loop) as longest:
        answer = await client.request(_ack(ids))
        assert not answer.HasField("error")
        client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        client.flow(entries * ENTRY_MESSAGES_MAX)
        again = await client.deliveries(entries)
    assert longest.cpu_s < STEP_CPU_S
    assert all(list(one.ack_set) == words for one in again)


async def test_an_ack_set_longer_than_its_entry_is_refused(brokers: Brokers) -> None:
    client = await brokers.connect()
    await client.producer()
    await client.subscribe()
    client.publish(b"", 0, entry=_entry(128), messages=128)
    (got,) = await client.deliveries(1)
    long = pb.MessageIdData(ledgerId=got.ledger, entryId=got.entry, ack_set=[-1, -1, 0])
    answer = await client.request(_ack([long]))
    assert answer.error == pb.NotAllowedError
    assert "3 words" in answer.message
    assert await _backlog(client) == 1


async def test_a_sticky_consumer_names_the_most_ranges_in_short_work(brokers: Brokers, loop: SimLoop) -> None:
    client = await brokers.connect()
    width = HASH_SLOTS // HASH_RANGES_MAX
    ranges = [(width * number, width * number + width // 2) for number in range(HASH_RANGES_MAX)]
    with longest_step(loop) as longest:
        assert isinstance(await _sticky(client, 1, ranges), pb.CommandSuccess)
        # The gaps are free, and a taken slot is not.
        gaps = [(end + 1, start + width - 1) for start, end in ranges]
        assert isinstance(await _sticky(client, 2, gaps), pb.CommandSuccess)
        assert (
            error_of(await _sticky(client, 3, [(HASH_SLOTS - 1, HASH_SLOTS - 1)])) == pb.ConsumerAssignError
        )
    assert longest.cpu_s < STEP_CPU_S


async def _sticky(client: WireClient, consumer_id: int, ranges: list[tuple[int, int]]) -> object:
    meta = pb.KeySharedMeta(
        keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end) for start, end in ranges]
    )
    return await client.subscribe(
        kind=pb.CommandSubscribe.Key_Shared, consumer_id=consumer_id, keySharedMeta=meta, permits=0
    )


async def test_a_field_above_its_limit_is_answered_and_the_connection_lives(brokers: Brokers) -> None:
    client = await brokers.connect()
    answer = await client.request(command_with("CommandSubscribe.subscription", above=True))
    assert error_of(answer) == pb.NotAllowedError
    assert "the limit of 1024 bytes" in answer.message
    refused = await client.request(command_with("CommandLookupTopic.topic", above=True))
    assert refused.response == pb.CommandLookupTopicResponse.Failed
    assert isinstance(await client.producer(), pb.CommandProducerSuccess)


async def test_a_field_above_its_limit_without_a_request_closes_the_connection(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    client = await brokers.connect()
    client.send(command_with("CommandRedeliverUnacknowledgedMessages.message_ids", above=True))
    await settle()
    assert client.hung_up
    assert f"the limit is {IDS_MAX}" in caplog.text


async def test_a_flood_of_small_commands_leaves_time_for_others(brokers: Brokers, loop: SimLoop) -> None:
    client = await brokers.connect()
    await client.subscribe(kind=SHARED)
    assert client.pump is not None
    flow = commands.encode(pb.CommandFlow(consumer_id=1, messagePermits=1))
    with longest_step(loop) as longest:
        client.pump.write(flow * 5000)
        await client.request(pb.CommandLookupTopic(topic=TOPIC, request_id=0))
    assert longest.cpu_s < STEP_CPU_S
    (log,) = brokers[0].logs.served
    assert next(iter(log.subscriptions["sub"].consumers)).permits == 6000
