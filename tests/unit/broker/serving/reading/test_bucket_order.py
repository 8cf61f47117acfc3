"""Parents before children, bucket by bucket: a broker, its controller, and members that speak the wire."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from anabranch.broker.dispatch import keyed_strategies
from anabranch.controller.decide import admission
from anabranch.controller.topic.controller import TopicController
from anabranch.model.names import Place
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.buckets import HIGH, KEYS, LOW, NAME, BucketReader, RoundPublisher
from tests.harness.cluster import Brokers
from tests.harness.wire import batch

LOWER, UPPER = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)


async def open_topic(
    brokers: Brokers, *names: str
) -> tuple[TopicController, RoundPublisher, list[BucketReader]]:
    client = await brokers.connect()
    client.send(pb.CommandScalableTopicLookup(session_id=1, topic=str(NAME)))
    await client.expect(pb.CommandScalableTopicUpdate)
    members = [BucketReader(await brokers.connect(), name) for name in names]
    for member in members:
        await member.register()
    return await leader(brokers), RoundPublisher(client), members


async def leader(brokers: Brokers) -> TopicController:
    found = await brokers[0].controllers.controller(NAME)
    assert isinstance(found, TopicController)
    return found


async def work(*members: BucketReader) -> None:
    await asyncio.gather(*(member.work() for member in members))


async def test_a_stuck_key_holds_back_its_bucket_and_no_other(brokers: Brokers) -> None:
    controller, publisher, (reader,) = await open_topic(brokers, "a")
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
    assert reader.updates == updates + 1, "the parent is gone, no more buckets are open"
    reader.check_order()
    assert len(reader.got) == 3 * len(KEYS)


async def test_a_cumulative_acknowledgement_acknowledges_nothing_that_is_held_back(brokers: Brokers) -> None:
    controller, publisher, (reader,) = await open_topic(brokers, "a")
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


async def test_an_open_bucket_stays_open_until_the_next_generation(brokers: Brokers) -> None:
    controller, publisher, (reader,) = await open_topic(brokers, "a")
    reader.stuck = {KEYS[3, 0]}
    await publisher.round(controller.layout)
    await controller.split(0)
    await work(reader)
    place = Place(NAME.segment_name(controller.layout.segment(1).range, 1), 0)
    record = controller.records["stream"]
    segments, term = brokers[0].segments, controller.record.term
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


@pytest.mark.brokers(keyed_dispatch="window")
async def test_entries_held_back_are_bounded_and_go_out_when_their_bucket_opens(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_strategies, "WINDOW_ENTRIES", 5)
    controller, publisher, (reader,) = await open_topic(brokers, "a")
    reader.stuck = {KEYS[3, 0]}
    await publisher.round(controller.layout)
    await controller.split(0)
    await publisher.round(controller.layout)
    for _ in range(9):
        await publisher.round(controller.layout, [KEYS[2, 0]])
    await publisher.round(controller.layout)
    await work(reader)
    subscriptions = [s.subscriptions["stream"] for s in brokers[0].logs.served if "stream" in s.subscriptions]
    lanes = [s.reading.lanes for s in subscriptions if s.reading.lanes is not None]
    assert max(one.dispatch.waiting for one in lanes) == 5
    reader.stuck.clear()
    await work(reader)
    reader.check_order()
    assert len(reader.got) == 3 * len(KEYS) + 9


async def test_a_segment_that_drains_at_once_is_read_without_buckets(brokers: Brokers) -> None:
    controller, publisher, (reader,) = await open_topic(brokers, "a")
    await publisher.round(controller.layout)
    await controller.split(0)
    await publisher.round(controller.layout)
    await work(reader)
    assert [len(segment.bucket_ranges) for segment in reader.assigned.values()] == [0, 0]
    assert reader.keys_of(1, 2) == set(KEYS.values())
    reader.check_order()


async def test_one_stuck_member_of_several_stops_only_its_buckets(brokers: Brokers) -> None:
    controller, publisher, (one, two) = await open_topic(brokers, "a", "b")
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


async def test_a_restart_in_the_middle_opens_no_more_and_no_less(brokers: Brokers) -> None:
    controller, publisher, (reader,) = await open_topic(brokers, "a")
    stuck = KEYS[3, 0]
    reader.stuck = {stuck}
    await publisher.round(controller.layout)
    await controller.split(0)
    await work(reader)
    before = controller.records["stream"]
    assert before.partly_drained
    await brokers.restart()
    again = BucketReader(await brokers.connect(), "a", {stuck})
    await again.register()
    controller = await leader(brokers)
    assert controller.records["stream"].consumers == before.consumers
    publisher = RoundPublisher(await brokers.connect())
    publisher.rounds = 1
    await publisher.round(controller.layout)
    await work(again)
    assert again.keys_of(1, 2) == LOW
    assert {key for key, number, _ in again.got if number == 0} == {stuck}
    again.stuck.clear()
    await work(again)
    assert again.keys_of(1, 2) == set(KEYS.values())
    again.check_order()


async def test_a_seek_in_the_middle_closes_all_children_again(brokers: Brokers) -> None:
    controller, publisher, (reader,) = await open_topic(brokers, "a")
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
    assert reader.keys_of(1, 2) == HIGH, "buckets that were open before the seek are closed"
    assert len(before) == len(KEYS) + len(LOW)
    reader.stuck.clear()
    await work(reader)
    reader.check_order()
    assert len(reader.got) == 2 * len(KEYS)


async def test_a_merged_segment_waits_for_the_stuck_buckets_of_both_parents(brokers: Brokers) -> None:
    controller, publisher, (reader,) = await open_topic(brokers, "a")
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


async def test_grandchildren_wait_for_both_generations(brokers: Brokers) -> None:
    controller, publisher, (reader,) = await open_topic(brokers, "a")
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


async def test_a_batch_that_does_not_name_its_hashes_counts_for_all_buckets(brokers: Brokers) -> None:
    controller, publisher, (reader,) = await open_topic(brokers, "a")
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
    assert set(reader.assigned) == {1, 2}, "no bucket of the segment counts as drained"
    reader.stuck.clear()
    await work(reader)
    assert set(reader.assigned) == {2, 3}
