"""Pruning and garbage of one topic."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from anabranch.controller.decide.operation import segment_name
from anabranch.controller.ports.segments import SegmentLoad
from anabranch.errors import (
    NotConnectedError,
)
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName
from tests.harness.control import TOPIC, ControlPlane


@pytest.mark.plane(retention_s=100.0, auto_scale_interval_s=10.0)
async def test_sealed_segments_are_pruned_when_drained_and_old_enough(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    await plane.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    plane.publish(controller.layout)
    await plane.call(controller.split(0))
    seen: list[int] = []
    plane.service.watch_layout(TOPIC, lambda layout: seen.append(layout.epoch if layout else -1))
    await asyncio.sleep(200)
    assert 0 in controller.layout.segments, "a queue subscription still has backlog there"
    plane.drain(controller.layout, "s", 0)
    await asyncio.sleep(200)
    layout = await plane.audit()
    assert sorted(layout.segments) == [1, 2]
    assert seen[-1] == layout.epoch == 2
    assert controller.records["s"].drained == ()


@pytest.mark.plane(retention_s=100.0, auto_scale_interval_s=10.0)
async def test_the_number_of_exclusive_producers_goes_with_the_segment(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    epochs = plane.context.topics.producer_epochs
    parent = segment_name(TOPIC, controller.layout.segment(0))
    await plane.call(epochs.next(parent, "alice"))
    await plane.call(controller.split(0))
    child = segment_name(TOPIC, controller.layout.segment(1))
    await asyncio.sleep(200)
    assert 0 not in controller.layout.segments
    assert [(await plane.call(epochs.current(log))).number for log in (parent, child)] == [-1, 0]
    await plane.call(plane.service.delete_topic(TOPIC))
    assert (await plane.call(epochs.current(child))).number == -1


@pytest.mark.plane(auto_scale_interval_s=10.0)
@pytest.mark.parametrize(
    "left",
    [
        pytest.param(2, marks=pytest.mark.plane(retention_s=100.0)),
        pytest.param(3, marks=pytest.mark.plane(retention_s=None)),
    ],
)
async def test_without_subscriptions_retention_alone_decides_and_none_keeps_for_ever(
    plane: ControlPlane, left: int
) -> None:
    controller = await plane.lead(1)
    await plane.call(controller.split(0))
    await asyncio.sleep(90)
    assert len(controller.layout.segments) == 3
    await asyncio.sleep(40)
    assert len(controller.layout.segments) == left


async def test_a_topic_that_is_too_large_drops_its_oldest_acknowledged_data(
    plane: ControlPlane,
) -> None:
    megabyte = 1024 * 1024

    controller = await plane.lead(2)
    policy = {"retentionTimeInMinutes": -1, "retentionSizeInMB": 10}
    topics = TopicStore(MemoryStore(plane.tree))
    await topics.namespaces.update_namespace(
        "public/default", lambda record: replace(record, policies={"retention_policies": policy})
    )
    await plane.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    plane.publish(controller.layout)
    await plane.call(controller.split(0))
    await plane.call(controller.split(1))
    for name, stored in plane.disk.stored.items():
        assert name.segment is not None
        size = (5 if name.segment.id < 2 else 3) * megabyte
        stored.load = SegmentLoad(size_bytes=size, next_index=-1 if name.segment.id else 77)
    plane.drain(controller.layout, "s", 0, 1)
    await plane.call(controller.settled())
    await plane.call(controller.upkeep.prune())
    layout = controller.layout
    assert sorted(layout.segments) == [2, 3, 4, 5], "12 MiB are left, and that is enough"
    kept = [(pruned.id, pruned.next_index, pruned.children) for pruned in layout.pruned.values()]
    assert kept == [(0, 77, (2, 3))], "the end of segment 1 is not known"
    sizes = [plane.disk.stored[plane.segment(layout, id_)].load.size_bytes for id_ in layout.segments]
    assert 10 * megabyte <= sum(sizes) <= 10 * megabyte + len(sizes), "and active ones gave up the rest"


@pytest.mark.plane(retention_s=0.0)
async def test_garbage_is_retried_until_it_is_gone(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    await plane.call(controller.split(0))
    down = True

    def fails(verb: str, name: TopicName) -> Exception | None:
        return NotConnectedError("owner is away") if verb == "delete" and down else None

    plane.segments.fails = fails
    await plane.call(controller.upkeep.prune())
    await asyncio.sleep(60)
    assert controller.why()["garbage"] == ["segment://public/default/orders/0000-ffff-0"]
    assert "owner is away" in str(controller.why()["troubles"])
    down = False
    await asyncio.sleep(10)
    await plane.audit()
    assert controller.why()["troubles"] == {}
