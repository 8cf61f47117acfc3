"""Sealed segments that are drained bucket by bucket, and the children that open meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import ServiceNotReadyError
from anabranch.model.drains import Ranges
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from tests.harness.control import ControlPlane, FakeConsumer, ids_of

LOWER, UPPER = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)


async def split_with_backlog(plane: ControlPlane, *names: str) -> tuple[TopicController, list[FakeConsumer]]:
    """A topic whose first segment, of four buckets, is sealed and not drained."""
    controller = await plane.lead(1)
    inboxes = [await join(plane, name) for name in names]
    plane.publish(controller.layout)
    await plane.call(controller.split(0))
    return controller, inboxes


async def join(plane: ControlPlane, name: str, *, whole: bool = False) -> FakeConsumer:
    inbox = FakeConsumer()
    registered = await plane.join(name, inbox, request=RegistrationRequest(start="earliest", whole=whole))
    inbox.told.append(registered.assignment)
    return inbox


def drain_part(plane: ControlPlane, layout: Layout, id_: int, *ranges: HashRange) -> None:
    plane.disk.acknowledge_part(plane.segment(layout, id_), "s", *ranges)


def told_open(plane: ControlPlane, layout: Layout, id_: int) -> Ranges | None:
    """The open buckets in the newest roster that the owner of a segment took."""
    return plane.disk.rosters[plane.segment(layout, id_), "s"].open


async def test_children_are_assigned_with_the_first_open_bucket_and_owners_hear_of_more(
    plane: ControlPlane,
) -> None:
    controller, (inbox,) = await split_with_backlog(plane, "a")
    drain_part(plane, controller.layout, 0, LOWER)
    await asyncio.sleep(0.1)
    assert inbox.ids == [0, 1, 2]
    assert [len(s.bucket_ranges) for s in inbox.told[-1].segments if s.segment_id] == [2, 2]
    record = await plane.stored()
    assert list(record.partly_drained) == [0]
    described: Any = controller.why()["subscriptions"]
    assert described["s"]["partlyDrained"] == {"0": [str(LOWER)]}
    told = len(inbox.told)
    drain_part(plane, controller.layout, 0, HashRange(0x8000, 0xBFFF))
    await asyncio.sleep(0.1)
    plane.drain(controller.layout, "s", 0)
    await asyncio.sleep(0.1)
    assert [told_open(plane, controller.layout, id_) for id_ in (1, 2)] == [None, None]
    assert inbox.ids == [1, 2]
    assert len(inbox.told) == told + 1
    assert (await plane.stored()).partly_drained == {}
    await plane.audit()


async def test_the_next_leader_keeps_open_buckets_open(plane: ControlPlane) -> None:
    controller, _ = await split_with_backlog(plane, "a", "b")
    layout = controller.layout
    drain_part(plane, layout, 0, LOWER)
    await asyncio.sleep(0.1)
    before = await plane.stored()
    plane.kill()
    plane.disk.rosters.clear()
    # The owner has restarted too, and has lost the partial drains.
    plane.disk.stored[plane.segment(layout, 0)].parts.clear()
    await plane.boot()
    again = await join(plane, "a")
    after = await plane.stored()
    assert (after.consumers, after.partly_drained) == (before.consumers, before.partly_drained)
    assert ids_of(again.told[0]) == sorted(s.segment_id for s in before.consumers["a"].segments)
    assert [told_open(plane, layout, id_) for id_ in (1, 2)] == [(LOWER,), (LOWER,)]
    await plane.audit()


async def test_an_owner_that_does_not_answer_gets_the_open_buckets_later(plane: ControlPlane) -> None:
    controller, (inbox,) = await split_with_backlog(plane, "a")
    layout = controller.layout
    drain_part(plane, layout, 0, HashRange(0, 0xBFFF))
    await asyncio.sleep(0.1)
    assert inbox.ids == [0, 1, 2]

    def fails(verb: str, name: TopicName) -> Exception | None:
        return ServiceNotReadyError("no owner") if verb == "restrict" else None

    plane.segments.fails = fails
    plane.drain(layout, "s", 0)
    await asyncio.sleep(0.1)
    assert inbox.ids == [1, 2]
    plane.segments.fails = lambda verb, name: None
    await asyncio.sleep(60)
    assert [told_open(plane, layout, id_) for id_ in (1, 2)] == [None, None]


async def test_a_seek_forgets_it_and_news_from_before_change_nothing(plane: ControlPlane) -> None:
    controller, (inbox,) = await split_with_backlog(plane, "a")
    layout = controller.layout
    drain_part(plane, layout, 0, LOWER)
    await asyncio.sleep(0.1)
    await plane.call(controller.seek("s", 0))
    assert (await plane.stored()).partly_drained == {}
    await asyncio.sleep(0.1)
    assert inbox.ids == [0]
    assert told_open(plane, layout, 1) == ()
    plane.disk.tell(plane.segment(layout, 0), "s", (LOWER,))
    await asyncio.sleep(0.1)
    assert inbox.ids == [0], "the owner was asked, and knows better"
    drain_part(plane, layout, 0, UPPER)
    await asyncio.sleep(0.1)
    assert (await plane.stored()).partly_drained.keys() == {0}
    assert inbox.ids == [0, 1, 2]


async def test_a_group_with_a_member_that_reads_whole_segments_waits_for_them(plane: ControlPlane) -> None:
    controller, (inbox,) = await split_with_backlog(plane, "a")
    drain_part(plane, controller.layout, 0, LOWER)
    await asyncio.sleep(0.1)
    assert inbox.ids == [0, 1, 2]
    other = await join(plane, "m1", whole=True)
    await asyncio.sleep(0.1)
    assert sorted(inbox.ids + other.ids) == [0]
    plane.drain(controller.layout, "s", 0)
    await asyncio.sleep(0.1)
    assert sorted(inbox.ids + other.ids) == [1, 2]
    assert not any(s.bucket_ranges for told in (inbox, other) for s in told.told[-1].segments)


@pytest.mark.plane(retention_s=0.0)
async def test_a_segment_drained_in_part_is_not_pruned(plane: ControlPlane) -> None:
    controller, _ = await split_with_backlog(plane, "a")
    drain_part(plane, controller.layout, 0, LOWER)
    await asyncio.sleep(1)
    await plane.call(controller.upkeep.prune())
    assert 0 in controller.layout.segments
    plane.drain(controller.layout, "s", 0)
    await asyncio.sleep(1)
    await plane.call(controller.upkeep.prune())
    assert 0 not in controller.layout.segments
    assert (await plane.stored()).drained == ()
    await asyncio.sleep(1)
