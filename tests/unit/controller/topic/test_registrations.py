"""Consumers that register, leave and are evicted, with their grace period."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.errors import (
    ConsumerBusyError,
    MetadataError,
)
from tests.harness.control import (
    FROM_EARLIEST,
    ControlPlane,
    FakeConsumer,
    ids_of,
    lead_on_failing_store,
    stored_assignments,
)


async def test_registration_assignment_and_generation_are_durable(plane: ControlPlane) -> None:
    await plane.lead()
    first, second = FakeConsumer(), FakeConsumer()
    one = await plane.join("a", first)
    assert ids_of(one.assignment) == [0, 1]
    two = await plane.join("b", second)
    await asyncio.sleep(0.1)
    assert sorted(ids_of(two.assignment) + first.ids) == [0, 1]
    assert first.told[-1].generation == two.assignment.generation == 2
    assert second.told == [], "the assignment that registration returned is not pushed again"
    assert await stored_assignments(plane) == {"a": first.ids, "b": ids_of(two.assignment)}
    await plane.audit()


async def test_reconnecting_within_the_grace_period_gives_the_same_and_disturbs_no_other_member(
    plane: ControlPlane,
) -> None:
    controller = await plane.lead()
    other = FakeConsumer()
    one, _ = await plane.join("a"), await plane.join("b", other)
    before = await stored_assignments(plane)
    told = len(other.told)
    controller.connection_lost(one)
    await asyncio.sleep(59)
    again = await plane.join("a")
    assert again.token != one.token
    assert ids_of(again.assignment) == before["a"]
    await asyncio.sleep(300)
    assert await stored_assignments(plane) == before
    assert len(other.told) == told


async def test_eviction_comes_after_the_full_grace_period_and_moves_the_share(plane: ControlPlane) -> None:
    controller = await plane.lead()
    inbox = FakeConsumer()
    one, _ = await plane.join("a"), await plane.join("b", inbox)
    controller.connection_lost(one)
    await asyncio.sleep(59.9)
    assert sorted(await stored_assignments(plane)) == ["a", "b"]
    members: Any = controller.why()["subscriptions"]["s"]["consumers"]  # type: ignore[index]
    assert members["a"]["evictedInSeconds"] == pytest.approx(0.1, abs=0.01)
    assert members["b"]["evictedInSeconds"] is None
    await asyncio.sleep(0.2)
    assert await stored_assignments(plane) == {"b": [0, 1]}
    assert inbox.ids == [0, 1]


async def test_a_late_loss_of_an_old_connection_is_ignored(plane: ControlPlane) -> None:
    controller = await plane.lead()
    inbox = FakeConsumer()
    old = await plane.join("a")
    controller.connection_lost(old)
    await plane.join("a", inbox)
    controller.connection_lost(old)
    await plane.call(controller.leave(old))
    await asyncio.sleep(200)
    assert list(await stored_assignments(plane)) == ["a"]
    await plane.join("b")
    await asyncio.sleep(0.1)
    assert len(inbox.ids) == 1, "the living connection still receives assignments"


async def test_the_same_name_twice_has_one_owner(plane: ControlPlane) -> None:
    await plane.lead()
    await plane.join("a")
    before = await stored_assignments(plane)
    with pytest.raises(ConsumerBusyError):
        await plane.join("a")
    assert await stored_assignments(plane) == before


async def test_leaving_frees_at_once(plane: ControlPlane) -> None:
    controller = await plane.lead()
    inbox = FakeConsumer()
    one, _ = await plane.join("a"), await plane.join("b", inbox)
    await plane.call(controller.leave(one))
    await plane.call(controller.leave(one))
    assert inbox.ids == [0, 1]
    assert await stored_assignments(plane) == {"b": [0, 1]}
    await plane.join("a")


async def test_members_survive_a_crash_and_get_a_full_grace_period(plane: ControlPlane) -> None:
    await plane.lead()
    await plane.join("a")
    await plane.join("b")
    before = await stored_assignments(plane)
    plane.kill()
    await asyncio.sleep(100)
    await plane.boot()
    await plane.controller()
    again = await plane.join("a")
    assert ids_of(again.assignment) == before["a"]
    await asyncio.sleep(59)
    assert await stored_assignments(plane) == before
    await asyncio.sleep(2)
    assert await stored_assignments(plane) == {"a": [0, 1]}


@pytest.mark.parametrize("delay_s", [0.001, 0.002, 0.003, 0.004])
async def test_a_caller_that_dies_while_it_registers_is_not_a_member_for_ever(
    plane: ControlPlane, delay_s: float
) -> None:
    controller = await plane.lead()
    task = plane.process.spawn(controller.register("s", "a", FakeConsumer(), FROM_EARLIEST))
    await asyncio.sleep(delay_s)
    assert not task.done()
    task.cancel()
    await asyncio.sleep(0.1)
    assert list(await stored_assignments(plane)) == ["a"], "its job had begun and went on without it"
    await asyncio.sleep(70)
    assert await stored_assignments(plane) == {}


async def test_a_consumer_that_could_not_leave_is_evicted_as_soon_as_that_can_be_stored(
    plane: ControlPlane,
) -> None:
    controller, store = await lead_on_failing_store(plane, 1)
    inbox = FakeConsumer()
    one, _ = await plane.join("a"), await plane.join("b", inbox)
    store.fails = lambda path: "subscriptions" in path
    with pytest.raises(MetadataError):
        await plane.call(controller.leave(one))
    await asyncio.sleep(1)
    store.fails = lambda path: False
    await asyncio.sleep(10)
    assert list(await stored_assignments(plane)) == ["b"]
    assert inbox.ids == [0]
    await plane.join("a")
    await asyncio.sleep(100)
    assert sorted(await stored_assignments(plane)) == ["a", "b"]


async def test_a_name_whose_owner_could_not_leave_is_free(plane: ControlPlane) -> None:
    controller, store = await lead_on_failing_store(plane, 1)
    one = await plane.join("a")
    store.fails = lambda path: "subscriptions" in path
    with pytest.raises(MetadataError):
        await plane.call(controller.leave(one))
    store.fails = lambda path: False
    await plane.join("a")
    await asyncio.sleep(100)
    assert list(await stored_assignments(plane)) == ["a"]


async def test_an_eviction_that_cannot_be_stored_is_tried_again(plane: ControlPlane) -> None:
    controller, store = await lead_on_failing_store(plane, 1)
    one = await plane.join("a")
    controller.connection_lost(one)
    store.fails = lambda path: "subscriptions" in path
    await asyncio.sleep(61)
    assert list(await stored_assignments(plane)) == ["a"]
    store.fails = lambda path: False
    await asyncio.sleep(10)
    assert await stored_assignments(plane) == {}
    assert controller.why()["troubles"] == {}


async def test_an_eviction_whose_change_fails_before_it_begins_is_retried(plane: ControlPlane) -> None:
    controller, store = await lead_on_failing_store(plane, 1)
    one = await plane.join("a")
    controller.connection_lost(one)
    await asyncio.sleep(59)
    # After a failure the records must be read before the next change, and that fails too.
    store.down = True
    with pytest.raises(MetadataError):
        await plane.call(controller.ensure_subscription("t", "QUEUE", "earliest"))
    await asyncio.sleep(2)
    store.down = False
    await asyncio.sleep(10)
    assert await stored_assignments(plane) == {}
