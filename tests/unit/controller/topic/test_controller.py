"""Layout operations and fencing of one topic."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace as replace_policy
from random import Random
from typing import Any

import pytest

from anabranch.clock import SystemClock
from anabranch.controller.decide.admission import AttachRequest
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.ports.leader import TopicLeader
from anabranch.controller.ports.segments import Aim, Drained
from anabranch.controller.service import ControllerService
from anabranch.controller.topic.leadership import ControllerContext
from anabranch.errors import (
    AnabranchError,
    ConsumerBusyError,
    InvalidConfigurationError,
    LayoutError,
    NotConnectedError,
    NotLeaderError,
    SegmentNotFoundError,
    SubscriptionNotFoundError,
)
from anabranch.metadata.memory import MemoryStore
from anabranch.metadata.topics import TopicStore
from anabranch.model.scaling.policy import to_json
from tests.fakes.segments import MemorySegments, SegmentDisk
from tests.harness.control import (
    FROM_EARLIEST,
    MANUAL,
    TOPIC,
    Alone,
    ControlPlane,
    FakeConsumer,
    ids_of,
    no_seal,
)


async def test_split_merge_and_rebucket_leave_layout_and_storage_agreed(plane: ControlPlane) -> None:
    controller = await plane.lead(2, {"team": "blue"})
    assert len((await plane.call(controller.split(0, [100, 200]))).active) == 4
    assert len((await plane.call(controller.merge([3, 2, 4]))).active) == 2
    layout = await plane.call(controller.rebucket(5, [7, 9]))
    assert layout.segment(6).bucket_splits == (7, 9)
    assert layout == await plane.audit()
    assert layout.epoch == 3
    assert controller.record.properties == {"team": "blue"}


async def test_children_are_made_before_parents_are_sealed_and_visible_after(plane: ControlPlane) -> None:
    controller = await plane.lead()
    plane.disk.log.clear()
    seen: list[int] = []
    plane.service.watch_layout(TOPIC, lambda layout: seen.append(layout.epoch if layout else -1))
    await plane.call(controller.merge([0, 1]))
    assert plane.disk.log == ["create 0000-ffff-2", "seal 0000-7fff-0", "seal 8000-ffff-1"]
    await asyncio.sleep(0)
    assert seen == [0, 1]


async def test_one_operation_goes_from_1_to_64_segments(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    for sub in "abcd":
        await plane.call(controller.ensure_subscription(sub, "QUEUE", "earliest"))
    layout = await plane.call(controller.split(0, [1024 * n for n in range(1, 64)]))
    assert len(layout.active) == 64
    assert layout.epoch == 1
    await plane.audit()


async def test_an_operation_that_the_layout_does_not_allow_changes_nothing(plane: ControlPlane) -> None:
    controller = await plane.lead()
    await plane.call(controller.split(0))
    before = controller.record
    for call, error in (
        (controller.split(0), LayoutError),
        (controller.split(9), SegmentNotFoundError),
        (controller.split(1, [3]), LayoutError),
        (controller.merge([1, 2]), LayoutError),
        (controller.merge([1]), LayoutError),
        (controller.rebucket(1, controller.layout.segment(1).bucket_splits), LayoutError),
        (controller.seek("nobody", 0), SubscriptionNotFoundError),
        (controller.delete_subscription("nobody"), SubscriptionNotFoundError),
    ):
        with pytest.raises(error):
            await plane.call(call)
    assert controller.record == before
    await plane.audit()


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_subscription_confirmed_while_a_split_runs_is_on_the_children(
    plane: ControlPlane, turns: int, kind: str, start: str
) -> None:
    controller = await plane.lead()
    split = plane.process.spawn(controller.split(0))
    await asyncio.sleep(turns * 0.0004)
    await plane.call(controller.ensure_subscription("s", kind, start))  # type: ignore[arg-type]
    # The subscription is confirmed: it misses no message of present and later segments.
    plane.publish(controller.layout)
    layout = await split
    await plane.audit()
    on_active = [plane.disk.backlog(plane.segment(layout, s.id), "s") for s in layout.active]
    assert None not in on_active
    published = sum(len(stored.entries) for stored in plane.disk.stored.values())
    waiting = sum(plane.disk.backlog(name, "s") or 0 for name in plane.disk.stored)
    assert published == waiting


@pytest.mark.parametrize("first", ["split", "group"])
@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_checkpoint_group_that_registers_beside_a_split_gets_the_children(
    plane: ControlPlane, turns: int, first: str
) -> None:
    controller = await plane.lead()
    inbox = FakeConsumer()
    if first == "split":
        split = plane.process.spawn(controller.split(0))
        await asyncio.sleep(turns * 0.0004)
        held = await plane.call(controller.register("g", "a", inbox, RegistrationRequest(kind="CHECKPOINT")))
    else:
        group = plane.process.spawn(
            controller.register("g", "a", inbox, RegistrationRequest(kind="CHECKPOINT"))
        )
        await asyncio.sleep(turns * 0.0004)
        split = plane.process.spawn(controller.split(0))
        held = await group
    layout = await split
    await asyncio.sleep(0.1)
    known = inbox.told[-1] if inbox.told else held.assignment
    assert ids_of(known) == sorted(layout.segments)
    await plane.audit()


@pytest.mark.parametrize("seed", range(25))
async def test_many_changes_in_the_same_instant_are_answered_and_agree(
    plane: ControlPlane, seed: int
) -> None:
    controller = await plane.lead(4)
    calls: list[Coroutine[Any, Any, object]] = [
        controller.split(0),
        controller.split(0),
        controller.merge([0, 1]),
        controller.merge([2, 3]),
        controller.split(3),
        controller.ensure_subscription("s", "STREAM", "earliest"),
        controller.ensure_subscription("q", "QUEUE", "latest"),
        controller.delete_subscription("s"),
        controller.rebucket(1, [5]),
        controller.seek("q", 0),
    ]
    plane.loop.random("order").shuffle(calls)
    outcomes = await asyncio.gather(*map(plane.call, calls), return_exceptions=True)
    for outcome in outcomes:
        assert not isinstance(outcome, BaseException) or isinstance(outcome, AnabranchError)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) >= 4
    assert await plane.audit() == controller.layout


async def test_a_cancelled_caller_does_not_leave_half_a_split(plane: ControlPlane) -> None:
    controller = await plane.lead()
    caller = plane.process.spawn(controller.split(0))
    await asyncio.sleep(0.0001)
    caller.cancel()
    await plane.call(controller.settled())
    assert (await plane.audit()).epoch == 1


async def test_an_unreachable_segment_delays_a_split_but_does_not_lose_it(plane: ControlPlane) -> None:
    controller = await plane.lead()
    plane.segments.fails = no_seal
    with pytest.raises(NotConnectedError):
        await plane.call(controller.split(0))
    operation = controller.why()["operation"]
    assert operation["kind"] == "split"  # type: ignore[index]
    with pytest.raises(NotConnectedError):
        await plane.call(controller.split(1))
    plane.segments.fails = lambda verb, name: None
    await asyncio.sleep(10)
    layout = await plane.audit()
    assert (layout.epoch, controller.why()["operation"], controller.why()["troubles"]) == (1, None, {})


async def test_a_deposed_leader_can_do_nothing_any_more(plane: ControlPlane) -> None:
    old = await plane.lead()
    await plane.call(old.ensure_subscription("s", "STREAM", "earliest"))
    inbox = FakeConsumer()
    held = await plane.call(old.register("s", "a", inbox))
    old_process, old_service = plane.process, plane.service
    await plane.boot()
    new = await plane.controller()
    assert new.record.term == old.record.term + 1
    await plane.call(new.split(1))
    before = dict(plane.tree.values)
    calls: dict[str, Coroutine[Any, Any, object]] = {
        "split": old.split(0),
        "merge": old.merge([2, 3]),
        "rebucket": old.rebucket(0, [7]),
        "ensure_subscription": old.ensure_subscription("t", "QUEUE", "earliest"),
        "delete_subscription": old.delete_subscription("s", force=True),
        "seek": old.seek("s", 0),
        "seek_segment": old.seek_segment("s", 0, Aim(0, 0)),
        "skip_all": old.skip_all("s"),
        "register": old.register("s", "b", FakeConsumer()),
        "admit": old.admit(
            "s", AttachRequest(segment_id=0, consumer_name="a", generation=held.assignment.generation)
        ),
        "drained": old.drained(Drained(plane.segment(new.layout, 1), "s")),
        "set_policy": old.set_policy({"maxSegments": 9}),
        "set_properties": old.set_properties({"team": "red"}),
        "delete": old.delete(force=True),
        "leave": old.leave(held),
    }
    assert calls.keys() | {"stats", "explain", "settled", "remind"} == {
        name for name in vars(TopicLeader) if name[0] != "_" and name != "connection_lost"
    }
    for call in calls.values():
        with pytest.raises(NotLeaderError):
            await old_process.spawn(call)
    log = [line for line in plane.disk.log if "seal" in line]
    assert log == ["seal 8000-ffff-1"]
    assert plane.tree.values == before, "no stored record was touched"
    assert inbox.told == []
    await plane.audit()
    await old_process.spawn(old_service.stop())


async def test_a_stale_leader_s_unconfirmed_subscription_is_finished_by_the_true_one(
    plane: ControlPlane,
) -> None:
    old = await plane.lead()
    old_process, old_service = plane.process, plane.service
    await plane.boot()
    await plane.controller()
    assert plane.disk.terms[TOPIC] == old.record.term + 1, "the new term is known at once"
    with pytest.raises(NotLeaderError):
        await old_process.spawn(
            old.register("g", "a", FakeConsumer(), RegistrationRequest(kind="CHECKPOINT"))
        )
    await old_process.spawn(old_service.stop())
    plane.kill()
    await plane.boot()
    await plane.controller()
    await plane.audit()


async def test_a_missing_active_segment_is_made_again_and_a_missing_sealed_one_is_not(
    plane: ControlPlane,
) -> None:
    controller = await plane.lead()
    await plane.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    layout = await plane.call(controller.split(0))
    plane.kill()
    lost = [plane.segment(layout, id_) for id_ in (0, 2)]
    for name in lost:
        del plane.disk.stored[name]
    await plane.boot()
    await plane.controller()
    assert lost[0] not in plane.disk.stored
    assert plane.disk.stored[lost[1]].cursors == {"s": 0}


@pytest.mark.plane(retention_s=0.0)
async def test_many_splits_and_merges_leave_the_record_small(plane: ControlPlane) -> None:
    controller = await plane.lead(1)
    await plane.call(controller.ensure_subscription("s", "STREAM", "earliest"))
    sizes = []
    for _ in range(50):
        layout = await plane.call(controller.split(controller.layout.active[0].id))
        await plane.call(controller.merge([segment.id for segment in layout.active]))
        await plane.call(controller.upkeep.prune())
        await plane.call(controller.upkeep.collect_garbage())
        sizes.append(sum(len(value.value) for value in plane.tree.values.values()))
    assert max(sizes) < sizes[0] + 200
    assert len(plane.disk.stored) == 1
    await plane.audit()


async def test_policies_and_properties_can_be_changed_and_survive_operations(plane: ControlPlane) -> None:
    changed = replace_policy(MANUAL.auto_scale, max_segments=3)

    async def policy() -> object:
        return (await plane.call(controller.stats()))["autoScalePolicy"]

    controller = await plane.lead()
    await plane.call(controller.set_policy({"maxSegments": 3}))
    await plane.call(controller.set_properties({"team": "red"}))
    await plane.call(controller.split(0))
    assert await policy() == to_json(changed)
    with pytest.raises(InvalidConfigurationError):
        await plane.call(controller.set_policy({"minSegments": 0}))
    plane.kill()
    await plane.boot()
    controller = await plane.controller()
    assert await policy() == to_json(changed)
    assert controller.record.properties == {"team": "red"}
    await plane.call(controller.set_policy(None))
    assert await policy() == to_json(MANUAL.auto_scale)


async def test_it_works_on_the_real_loop_too() -> None:
    disk = SegmentDisk()
    context = ControllerContext(
        topics=TopicStore(MemoryStore()),
        segments=MemorySegments(disk),
        clock=SystemClock(),
        rng=Random(0),
        settings=MANUAL,
    )
    service = ControllerService(context, Alone())
    await service.start()
    await service.create_topic(TOPIC, 2)
    controller = await service.controller(TOPIC)
    await controller.merge([0, 1])
    writable = [name.segment.id for name, found in disk.stored.items() if name.segment and not found.sealed]
    assert writable == [2]
    await controller.register("s", "a", FakeConsumer(), FROM_EARLIEST)
    with pytest.raises(ConsumerBusyError):
        await controller.register("s", "a", FakeConsumer(), FROM_EARLIEST)
    await service.stop()
    await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
