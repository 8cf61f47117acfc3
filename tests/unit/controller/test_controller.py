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
from anabranch.controller.decide.groups import RegistrationRequest
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
from anabranch.model.policy import AutoScaleOverride, to_json
from tests.fakes.segments import MemorySegments, SegmentWorld
from tests.harness.control import FROM_EARLIEST, MANUAL, TOPIC, FakeConsumer, Plant, ids_of, no_seal


async def test_split_merge_and_rebucket_leave_layout_and_storage_agreed(plant: Plant) -> None:
    controller = await plant.lead(2, {"team": "blue"})
    assert len((await plant.call(controller.split(0, [100, 200]))).active) == 4
    assert len((await plant.call(controller.merge([3, 2, 4]))).active) == 2
    layout = await plant.call(controller.rebucket(5, [7, 9]))
    assert layout.segment(6).bucket_splits == (7, 9)
    assert layout == await plant.audit()
    assert layout.epoch == 3
    assert controller.record.properties == {"team": "blue"}


async def test_children_are_made_before_parents_are_sealed_and_visible_after(plant: Plant) -> None:
    controller = await plant.lead()
    plant.world.log.clear()
    seen: list[int] = []
    plant.service.watch_layout(TOPIC, lambda layout: seen.append(layout.epoch if layout else -1))
    await plant.call(controller.merge([0, 1]))
    assert plant.world.log == ["create 0000-ffff-2", "seal 0000-7fff-0", "seal 8000-ffff-1"]
    await asyncio.sleep(0)
    assert seen == [0, 1]


async def test_one_operation_goes_from_1_to_64_segments(plant: Plant) -> None:
    controller = await plant.lead(1)
    for sub in "abcd":
        await plant.call(controller.ensure_subscription(sub, "QUEUE", "earliest"))
    layout = await plant.call(controller.split(0, [1024 * n for n in range(1, 64)]))
    assert len(layout.active) == 64
    assert layout.epoch == 1
    await plant.audit()


async def test_an_operation_that_the_layout_does_not_allow_changes_nothing(plant: Plant) -> None:
    controller = await plant.lead()
    await plant.call(controller.split(0))
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
            await plant.call(call)
    assert controller.record == before
    await plant.audit()


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_subscription_confirmed_while_a_split_runs_is_on_the_children(
    plant: Plant, turns: int, kind: str, start: str
) -> None:
    controller = await plant.lead()
    split = plant.process.spawn(controller.split(0))
    await asyncio.sleep(turns * 0.0004)
    await plant.call(controller.ensure_subscription("s", kind, start))  # type: ignore[arg-type]
    # Confirmed: from now on the subscription misses nothing, on present and later segments.
    plant.publish(controller.layout)
    layout = await split
    await plant.audit()
    on_active = [plant.world.backlog(plant.segment(layout, s.id), "s") for s in layout.active]
    assert None not in on_active
    published = sum(len(stored.entries) for stored in plant.world.stored.values())
    waiting = sum(plant.world.backlog(name, "s") or 0 for name in plant.world.stored)
    assert published == waiting


@pytest.mark.parametrize("first", ["split", "group"])
@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_checkpoint_group_that_registers_beside_a_split_gets_the_children(
    plant: Plant, turns: int, first: str
) -> None:
    controller = await plant.lead()
    inbox = FakeConsumer()
    if first == "split":
        split = plant.process.spawn(controller.split(0))
        await asyncio.sleep(turns * 0.0004)
        held = await plant.call(controller.register("g", "a", inbox, RegistrationRequest(kind="CHECKPOINT")))
    else:
        group = plant.process.spawn(
            controller.register("g", "a", inbox, RegistrationRequest(kind="CHECKPOINT"))
        )
        await asyncio.sleep(turns * 0.0004)
        split = plant.process.spawn(controller.split(0))
        held = await group
    layout = await split
    await asyncio.sleep(0.1)
    known = inbox.told[-1] if inbox.told else held.assignment
    assert ids_of(known) == sorted(layout.segments)
    await plant.audit()


@pytest.mark.parametrize("seed", range(25))
async def test_many_changes_in_the_same_instant_are_answered_and_agree(plant: Plant, seed: int) -> None:
    controller = await plant.lead(4)
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
    plant.loop.random("order").shuffle(calls)
    outcomes = await asyncio.gather(*map(plant.call, calls), return_exceptions=True)
    for outcome in outcomes:
        assert not isinstance(outcome, BaseException) or isinstance(outcome, AnabranchError)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) >= 4
    assert await plant.audit() == controller.layout


async def test_a_cancelled_caller_does_not_leave_half_a_split(plant: Plant) -> None:
    controller = await plant.lead()
    caller = plant.process.spawn(controller.split(0))
    await asyncio.sleep(0.0001)
    caller.cancel()
    await plant.call(controller.settled())
    assert (await plant.audit()).epoch == 1


async def test_an_unreachable_segment_delays_a_split_but_does_not_lose_it(plant: Plant) -> None:
    controller = await plant.lead()
    plant.segments.fails = no_seal
    with pytest.raises(NotConnectedError):
        await plant.call(controller.split(0))
    operation = controller.why()["operation"]
    assert operation["kind"] == "split"  # type: ignore[index]
    with pytest.raises(NotConnectedError):
        await plant.call(controller.split(1))
    plant.segments.fails = lambda verb, name: None
    await asyncio.sleep(10)
    layout = await plant.audit()
    assert (layout.epoch, controller.why()["operation"], controller.why()["troubles"]) == (1, None, {})


async def test_a_deposed_leader_can_do_nothing_any_more(plant: Plant) -> None:
    old = await plant.lead()
    await plant.call(old.ensure_subscription("s", "STREAM", "earliest"))
    inbox = FakeConsumer()
    held = await plant.call(old.register("s", "a", inbox))
    old_process, old_service = plant.process, plant.service
    await plant.boot()
    new = await plant.controller()
    assert new.record.term == old.record.term + 1
    await plant.call(new.split(1))
    before = dict(plant.tree.values)
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
        "drained": old.drained(Drained(plant.segment(new.layout, 1), "s")),
        "set_policy": old.set_policy(AutoScaleOverride(max_segments=9)),
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
    log = [line for line in plant.world.log if "seal" in line]
    assert log == ["seal 8000-ffff-1"]
    assert plant.tree.values == before, "nothing that is stored was touched"
    assert inbox.told == []
    await plant.audit()
    await old_process.spawn(old_service.stop())


async def test_a_stale_leader_s_unconfirmed_subscription_is_finished_by_the_true_one(plant: Plant) -> None:
    old = await plant.lead()
    old_process, old_service = plant.process, plant.service
    await plant.boot()
    await plant.controller()
    assert plant.world.terms[TOPIC] == old.record.term + 1, "the new term is known at once"
    with pytest.raises(NotLeaderError):
        await old_process.spawn(
            old.register("g", "a", FakeConsumer(), RegistrationRequest(kind="CHECKPOINT"))
        )
    await old_process.spawn(old_service.stop())
    plant.kill()
    await plant.boot()
    await plant.controller()
    await plant.audit()


async def test_a_missing_active_segment_is_made_again_and_a_missing_sealed_one_is_not(plant: Plant) -> None:
    controller = await plant.lead()
    await plant.call(controller.ensure_subscription("s", "QUEUE", "earliest"))
    layout = await plant.call(controller.split(0))
    plant.kill()
    lost = [plant.segment(layout, id_) for id_ in (0, 2)]
    for name in lost:
        del plant.world.stored[name]
    await plant.boot()
    await plant.controller()
    assert lost[0] not in plant.world.stored
    assert plant.world.stored[lost[1]].cursors == {"s": 0}


@pytest.mark.plant(retention_s=0.0)
async def test_many_splits_and_merges_leave_the_record_small(plant: Plant) -> None:
    controller = await plant.lead(1)
    await plant.call(controller.ensure_subscription("s", "STREAM", "earliest"))
    sizes = []
    for _ in range(50):
        layout = await plant.call(controller.split(controller.layout.active[0].id))
        await plant.call(controller.merge([segment.id for segment in layout.active]))
        await plant.call(controller.upkeep.prune())
        await plant.call(controller.upkeep.collect_garbage())
        sizes.append(sum(len(value.value) for value in plant.tree.values.values()))
    assert max(sizes) < sizes[0] + 200
    assert len(plant.world.stored) == 1
    await plant.audit()


async def test_policies_and_properties_can_be_changed_and_survive_operations(plant: Plant) -> None:
    changed = replace_policy(MANUAL.auto_scale, max_segments=3)

    async def policy() -> object:
        return (await plant.call(controller.stats()))["autoScalePolicy"]

    controller = await plant.lead()
    await plant.call(controller.set_policy(AutoScaleOverride(max_segments=3)))
    await plant.call(controller.set_properties({"team": "red"}))
    await plant.call(controller.split(0))
    assert await policy() == to_json(changed)
    with pytest.raises(InvalidConfigurationError):
        await plant.call(controller.set_policy(AutoScaleOverride(min_segments=0)))
    plant.kill()
    await plant.boot()
    controller = await plant.controller()
    assert await policy() == to_json(changed)
    assert controller.record.properties == {"team": "red"}
    await plant.call(controller.set_policy(None))
    assert await policy() == to_json(MANUAL.auto_scale)


async def test_it_works_on_the_real_loop_too() -> None:
    world = SegmentWorld()
    context = ControllerContext(
        topics=TopicStore(MemoryStore()),
        segments=MemorySegments(world),
        clock=SystemClock(),
        rng=Random(0),
        settings=MANUAL,
    )
    service = ControllerService(context)
    await service.start()
    await service.create_topic(TOPIC, 2)
    controller = await service.controller(TOPIC)
    await controller.merge([0, 1])
    writable = [name.segment.id for name, found in world.stored.items() if name.segment and not found.sealed]
    assert writable == [2]
    await controller.register("s", "a", FakeConsumer(), FROM_EARLIEST)
    with pytest.raises(ConsumerBusyError):
        await controller.register("s", "a", FakeConsumer(), FROM_EARLIEST)
    await service.stop()
    await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
