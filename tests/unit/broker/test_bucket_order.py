"""Parents before children, bucket by bucket: a broker, its controller, and members that speak the wire."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from anabranch.broker.serving import keyed_reading
from anabranch.controller.decide import admission
from anabranch.controller.decide.places import Place
from anabranch.controller.topic.controller import TopicController
from anabranch.model.hashing import bucket_hash, key_hash, segment_hash
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.cluster import World
from tests.harness.wire import WireClient, batch, register_consumer, value_of

NAME = TopicName.parse("topic://public/default/orders")
LOWER, UPPER = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)


def key_in(quarter: int, half: int) -> str:
    """A key of one quarter of the bucket hashes and one half of the segment hashes."""
    for number in itertools.count():
        raw = key_hash(f"k{number}")
        if bucket_hash(raw) >> 14 == quarter and segment_hash(raw) >> 15 == half:
            return f"k{number}"
    raise AssertionError


KEYS = {(quarter, half): key_in(quarter, half) for quarter in range(4) for half in range(2)}
LOW = {key for (quarter, _), key in KEYS.items() if quarter < 2}
HIGH = set(KEYS.values()) - LOW


class RoundPublisher:
    """Sends every key to the segment that takes it now."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.rounds = 0
        self._producers: dict[int, int] = {}
        self.sequence = itertools.count()

    async def round(self, layout: Layout, keys: Iterable[str] = tuple(KEYS.values())) -> None:
        """One more message of each key."""
        for key in keys:
            slot = segment_hash(key_hash(key))
            segment = next(s for s in layout.active if slot in s.range)
            if segment.id not in self._producers:
                self._producers[segment.id] = 100 + segment.id
                topic = str(NAME.segment_name(segment.range, segment.id))
                await self.client.producer(topic, self._producers[segment.id])
            value = f"{key}:{self.rounds}".encode()
            producer_id = self._producers[segment.id]
            self.client.publish(value, next(self.sequence), key=key, producer_id=producer_id)
            await self.client.receipt()
        self.rounds += 1


class BucketReader:
    """A registered consumer: reads what it is assigned and acknowledges all but the keys it is stuck on."""

    def __init__(self, client: WireClient, name: str, stuck: Iterable[str] = ()) -> None:
        self.client = client
        self.name = name
        self.stuck = set(stuck)
        self.got: list[tuple[str, int, int]] = []
        """Key, number and segment of each delivery."""
        self.updates = 0
        self.assigned: dict[int, pb.ScalableAssignedSegment] = {}
        self._generation = 0
        self._attached: dict[int, tuple[int, bool]] = {}
        """By consumer id the segment, and whether it is read by buckets."""
        self.deliveries: list[Delivery] = []
        """All of `got` that came out of a segment read by buckets."""
        self._unacked: list[tuple[str, Delivery]] = []
        self._ids = itertools.count(1000)

    async def register(self) -> None:
        answer = await register_consumer(self.client, self.name)
        self._follow(answer.assignment)

    def _follow(self, assignment: pb.ScalableConsumerAssignment) -> None:
        self.assigned = {segment.segment_id: segment for segment in assignment.segments}
        self._generation = assignment.generation

    async def _reconcile(self) -> None:
        """Give up what is not assigned any more, or in another way, and attach to what is."""
        for consumer_id, (segment_id, by_buckets) in list(self._attached.items()):
            wanted = self.assigned.get(segment_id)
            if wanted is None or bool(wanted.bucket_ranges) != by_buckets:
                del self._attached[consumer_id]
                await self.client.request(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=0))
        attached = {segment_id for segment_id, _ in self._attached.values()}
        for segment_id, segment in self.assigned.items():
            if segment_id not in attached:
                await self._attach(segment)

    async def _attach(self, segment: pb.ScalableAssignedSegment) -> None:
        options: dict[str, Any] = {"generation": self._generation}
        kind = pb.CommandSubscribe.Exclusive
        if segment.bucket_ranges:
            kind = pb.CommandSubscribe.Key_Shared
            parts = [pb.IntRange(start=part.start, end=part.end) for part in segment.bucket_ranges]
            options["keySharedMeta"] = pb.KeySharedMeta(
                keySharedMode=pb.STICKY, entryBucketDispatch=True, hashRanges=parts
            )
        consumer_id = next(self._ids)
        answer = await self.client.subscribe(
            segment.segment_topic, "stream", kind, consumer_id=consumer_id, name=self.name, **options
        )
        if isinstance(answer, pb.CommandSuccess):
            self._attached[consumer_id] = segment.segment_id, bool(segment.bucket_ranges)

    async def work(self) -> None:
        """Do what there is to do, for two seconds."""
        for _ in range(40):
            await self._reconcile()
            await asyncio.sleep(0.05)
            commands, self.client.inbox = self.client.inbox, []
            for command in commands:
                if isinstance(command, Delivery) and command.consumer_id in self._attached:
                    key, number = value_of(command).decode().split(":")
                    self.got.append((key, int(number), self._attached[command.consumer_id][0]))
                    self._unacked.append((key, command))
                    if self._attached[command.consumer_id][1]:
                        self.deliveries.append(command)
                elif isinstance(command, pb.CommandCloseConsumer):
                    self._attached.pop(command.consumer_id, None)
                    self._unacked = [pair for pair in self._unacked if pair[1].consumer_id in self._attached]
                elif isinstance(command, pb.CommandScalableTopicAssignmentUpdate):
                    self.updates += 1
                    self._follow(command.assignment)
            for key, delivery in self._unacked:
                if key not in self.stuck:
                    self.client.acknowledge(delivery, consumer_id=delivery.consumer_id)
            self._unacked = [pair for pair in self._unacked if pair[0] in self.stuck]

    def keys_of(self, *segments: int) -> set[str]:
        """The keys that came out of these segments."""
        return {key for key, _, segment in self.got if segment in segments}

    def check_order(self) -> None:
        numbers: dict[str, list[int]] = {}
        for key, number, _ in self.got:
            numbers.setdefault(key, []).append(number)
        for key, found in numbers.items():
            assert found == sorted(set(found)), f"{key} came as {found}"


async def open_world(world: World, *names: str) -> tuple[TopicController, RoundPublisher, list[BucketReader]]:
    client = await world.connect()
    client.send(pb.CommandScalableTopicLookup(session_id=1, topic=str(NAME)))
    await client.expect(pb.CommandScalableTopicUpdate)
    members = [BucketReader(await world.connect(), name) for name in names]
    for member in members:
        await member.register()
    return await leader(world), RoundPublisher(client), members


async def leader(world: World) -> TopicController:
    found = await world.broker.controllers.controller(NAME)
    assert isinstance(found, TopicController)
    return found


async def work(*members: BucketReader) -> None:
    await asyncio.gather(*(member.work() for member in members))


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_a_stuck_key_holds_back_its_bucket_and_no_other(world: World) -> None:
    controller, publisher, (reader,) = await open_world(world, "a")
    reader.stuck = {KEYS[3, 0]}
    await publisher.round(controller.layout)
    await work(reader)
    await controller.split(0)
    await publisher.round(controller.layout)
    await publisher.round(controller.layout)
    await work(reader)
    assert reader.keys_of(0) == set(KEYS.values())
    assert reader.keys_of(1, 2) == LOW, "a bucket of a child is as wide as two of its parent"
    assert set(reader.assigned) == {0, 1, 2}
    why = controller.why()["subscriptions"]["stream"]["waiting"]  # type: ignore[index]
    assert why["1"] == [{"segment": 0, "buckets": ["c000-ffff"], "consumers": ["a"]}]
    updates = reader.updates
    reader.stuck.clear()
    await work(reader)
    assert reader.keys_of(1, 2) == set(KEYS.values())
    assert set(reader.assigned) == {1, 2}
    assert reader.updates == updates + 1, "told that the parent is gone, not that more is open"
    reader.check_order()
    assert len(reader.got) == 3 * len(KEYS)


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_a_cumulative_acknowledgement_acknowledges_nothing_that_is_held_back(world: World) -> None:
    controller, publisher, (reader,) = await open_world(world, "a")
    reader.stuck = {KEYS[3, 0]}
    await publisher.round(controller.layout)
    await controller.split(0)
    await publisher.round(controller.layout, [*sorted(HIGH), *sorted(LOW)])
    await work(reader)
    assert reader.keys_of(1, 2) == LOW
    for delivery in reader.deliveries:
        reader.client.acknowledge(delivery, consumer_id=delivery.consumer_id, cumulative=True)
    await work(reader)
    reader.stuck.clear()
    await work(reader)
    assert reader.keys_of(1, 2) == set(KEYS.values())
    reader.check_order()


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_an_open_bucket_stays_open_until_the_next_generation(world: World) -> None:
    controller, publisher, (reader,) = await open_world(world, "a")
    reader.stuck = {KEYS[3, 0]}
    await publisher.round(controller.layout)
    await controller.split(0)
    await work(reader)
    place = Place(NAME.segment_name(controller.layout.segment(1).range, 1), 0)
    record = controller.subscriptions()["stream"]
    segments, term = world.broker.segments, controller.record.term
    roster = admission.roster(record, 1)
    for open_ in ((LOWER, UPPER), (LOWER,), ()):
        await segments.restrict(place, "stream", replace(roster, open=open_), term)
    await publisher.round(controller.layout)
    await work(reader)
    assert reader.keys_of(1) == {key for (_, half), key in KEYS.items() if half == 0}
    newer = replace(roster, generation=roster.generation + 1, open=(UPPER,))
    await segments.restrict(place, "stream", newer, term)
    await segments.restrict(place, "stream", replace(roster, open=None), term)
    reader.got.clear()
    await publisher.round(controller.layout)
    await work(reader)
    assert reader.keys_of(1) == {KEYS[2, 0], KEYS[3, 0]}


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_entries_held_back_are_bounded_and_go_out_when_their_bucket_opens(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_reading, "HELD_MAX", 5)

    controller, publisher, (reader,) = await open_world(world, "a")
    reader.stuck = {KEYS[3, 0]}
    await publisher.round(controller.layout)
    await controller.split(0)
    await publisher.round(controller.layout)
    for _ in range(9):
        await publisher.round(controller.layout, [KEYS[2, 0]])
    await publisher.round(controller.layout)
    await work(reader)
    held = [s for s in world.broker.logs.served if "stream" in s.subscriptions]
    assert max(s.subscriptions["stream"].reading.replaying for s in held) == 5
    reader.stuck.clear()
    await work(reader)
    reader.check_order()
    assert len(reader.got) == 3 * len(KEYS) + 9


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_a_segment_that_drains_at_once_is_read_without_buckets(world: World) -> None:
    controller, publisher, (reader,) = await open_world(world, "a")
    await publisher.round(controller.layout)
    await controller.split(0)
    await publisher.round(controller.layout)
    await work(reader)
    assert [len(segment.bucket_ranges) for segment in reader.assigned.values()] == [0, 0]
    assert reader.keys_of(1, 2) == set(KEYS.values())
    reader.check_order()


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_one_stuck_member_of_several_stops_only_its_buckets(world: World) -> None:
    controller, publisher, (one, two) = await open_world(world, "a", "b")
    await work(one, two)
    one.stuck, two.stuck = set(), set(KEYS.values())
    await publisher.round(controller.layout)
    await work(one, two)
    assert (one.keys_of(0), two.keys_of(0)) == (LOW, HIGH)
    await controller.split(0)
    await publisher.round(controller.layout)
    await work(one, two)
    assert one.keys_of(1, 2) | two.keys_of(1, 2) == LOW
    two.stuck.clear()
    await work(one, two)
    assert one.keys_of(1, 2) | two.keys_of(1, 2) == set(KEYS.values())
    for member in (one, two):
        member.check_order()


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_a_restart_in_the_middle_opens_no_more_and_no_less(world: World) -> None:
    controller, publisher, (reader,) = await open_world(world, "a")
    stuck = KEYS[3, 0]
    reader.stuck = {stuck}
    await publisher.round(controller.layout)
    await controller.split(0)
    await work(reader)
    before = controller.subscriptions()["stream"]
    assert before.partly_drained
    await world.restart()
    again = BucketReader(await world.connect(), "a", {stuck})
    await again.register()
    controller = await leader(world)
    assert controller.subscriptions()["stream"].consumers == before.consumers
    publisher = RoundPublisher(await world.connect())
    publisher.rounds = 1
    await publisher.round(controller.layout)
    await work(again)
    assert again.keys_of(1, 2) == LOW
    assert {key for key, number, _ in again.got if number == 0} == {stuck}
    again.stuck.clear()
    await work(again)
    assert again.keys_of(1, 2) == set(KEYS.values())
    again.check_order()


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_a_seek_in_the_middle_closes_all_children_again(world: World) -> None:
    controller, publisher, (reader,) = await open_world(world, "a")
    reader.stuck = {KEYS[3, 1]}
    await publisher.round(controller.layout)
    await controller.split(0)
    await publisher.round(controller.layout)
    await work(reader)
    assert reader.keys_of(1, 2) == LOW
    before, reader.stuck = list(reader.got), {KEYS[0, 0]}
    reader.got.clear()
    await controller.seek("stream", 0)
    await work(reader)
    assert reader.keys_of(1, 2) == HIGH, "what was open before the seek is closed now"
    assert len(before) == len(KEYS) + len(LOW)
    reader.stuck.clear()
    await work(reader)
    reader.check_order()
    assert len(reader.got) == 2 * len(KEYS)


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_a_merged_segment_waits_for_the_stuck_buckets_of_both_parents(world: World) -> None:
    controller, publisher, (reader,) = await open_world(world, "a")
    await controller.split(0)
    await work(reader)
    await publisher.round(controller.layout)
    await work(reader)
    # Each half of two buckets; the parents of the merge get four.
    for id_ in (1, 2):
        await controller.rebucket(id_, [0x4000, 0x8000, 0xC000])
    await work(reader)
    first, second = (segment.id for segment in controller.layout.active)
    reader.stuck = {KEYS[0, 0], KEYS[3, 1]}
    await publisher.round(controller.layout)
    await work(reader)
    await controller.merge([first, second])
    (merged,) = controller.layout.active
    assert merged.bucket_count == 8
    await publisher.round(controller.layout)
    await work(reader)
    middle = {key for (quarter, _), key in KEYS.items() if quarter in (1, 2)}
    assert reader.keys_of(merged.id) == middle
    reader.stuck = {KEYS[3, 1]}
    await work(reader)
    assert reader.keys_of(merged.id) == {key for (quarter, _), key in KEYS.items() if quarter < 3}
    reader.stuck.clear()
    await work(reader)
    assert reader.keys_of(merged.id) == set(KEYS.values())
    reader.check_order()


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_grandchildren_wait_for_both_generations(world: World) -> None:
    controller, publisher, (reader,) = await open_world(world, "a")
    await publisher.round(controller.layout)
    reader.stuck = {KEYS[3, 0]}
    await work(reader)
    await controller.rebucket(0, [0x4000, 0x8000, 0xC000, 0xE000])
    await publisher.round(controller.layout)
    await work(reader)
    stuck_below = KEYS[0, 0]
    reader.stuck.add(stuck_below)
    await publisher.round(controller.layout)
    await work(reader)
    await controller.rebucket(1, [0x4000, 0x8000, 0xC000])
    await publisher.round(controller.layout)
    await work(reader)
    assert reader.keys_of(1) == set(KEYS.values()) - {KEYS[3, 0], KEYS[3, 1]}
    assert reader.keys_of(2) == {key for (quarter, _), key in KEYS.items() if quarter in (1, 2)}
    reader.stuck = {KEYS[3, 0]}
    await work(reader)
    assert reader.keys_of(2) == {key for (quarter, _), key in KEYS.items() if quarter < 3}
    reader.stuck.clear()
    await work(reader)
    assert reader.keys_of(2) == set(KEYS.values())
    reader.check_order()
    assert len(reader.got) == 4 * len(KEYS)


@pytest.mark.world(auto_scale_interval_s=3600.0)
async def test_a_batch_that_does_not_name_its_hashes_counts_for_all_buckets(world: World) -> None:
    controller, publisher, (reader,) = await open_world(world, "a")
    await publisher.round(controller.layout)
    await controller.split(0)
    await publisher.round(controller.layout, [KEYS[0, 0]])
    sequence = next(publisher.sequence)
    publisher.client.publish(b"", sequence, producer_id=101, entry=batch([b"mixed:0"], sequence))
    await publisher.client.receipt()
    await publisher.round(controller.layout, [KEYS[1, 0]])
    reader.stuck = {KEYS[3, 0]}
    await work(reader)
    assert [key for key, _, segment in reader.got if segment == 1] == [KEYS[0, 0]]
    reader.stuck = {"mixed"}
    await work(reader)
    assert [key for key, _, segment in reader.got if segment == 1] == [KEYS[0, 0], "mixed", KEYS[1, 0]]
    await controller.rebucket(1, [0xC000])
    await work(reader)
    assert set(reader.assigned) == {1, 2}, "nothing of the segment counts as drained"
    reader.stuck.clear()
    await work(reader)
    assert set(reader.assigned) == {2, 3}
