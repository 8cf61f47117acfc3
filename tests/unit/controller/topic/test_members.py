"""One consumer holds a name: it gets the name back after a reconnect; others do not."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.ports.leader import Membership
from anabranch.controller.topic.members import RETURN_S
from anabranch.errors import ConsumerBusyError
from tests.harness.control import ControlPlane, FakeConsumer, SilentConsumer, ids_of

MINE, THEIRS = 11, 22


async def join(
    plane: ControlPlane, instance: int | None, attempt: int = 1, inbox: FakeConsumer | None = None
) -> Membership:
    request = RegistrationRequest(
        start="earliest", address=f"host-{instance}:1", instance=instance, attempt=attempt
    )
    return await plane.join("a", inbox, request=request)


async def test_a_returning_consumer_takes_its_name_over_at_once_and_gets_all_pushes(
    plane: ControlPlane,
) -> None:
    await plane.lead()
    controller = await plane.controller()
    old, new = SilentConsumer(), FakeConsumer()
    first = await join(plane, MINE, 1, old)
    began_at = plane.loop.time()
    second = await join(plane, MINE, 2, new)
    assert plane.loop.time() - began_at < 1
    assert ids_of(second.assignment) == ids_of(first.assignment) == [0, 1]
    controller.connection_lost(first)
    await plane.call(controller.leave(first))
    await plane.call(controller.split(0))
    await asyncio.sleep(100)
    assert (old.told, new.ids) == ([], [1, 2, 3]), "the end of the former connection has no effect"


async def test_another_consumer_of_the_name_is_refused_with_the_address_of_the_holder(
    plane: ControlPlane,
) -> None:
    await plane.lead()
    await join(plane, MINE)
    for instance in (THEIRS, None):
        with pytest.raises(ConsumerBusyError, match=r"a is connected already, from host-11:1; close it"):
            await join(plane, instance)


async def test_clients_without_an_instance_are_never_taken_for_one_another(plane: ControlPlane) -> None:
    await plane.lead()
    await join(plane, None)
    with pytest.raises(ConsumerBusyError):
        await join(plane, None, 2)


async def test_a_request_that_was_overtaken_by_a_later_one_takes_nothing_back(plane: ControlPlane) -> None:
    await plane.lead()
    inbox = FakeConsumer()
    await join(plane, MINE, 2, inbox)
    with pytest.raises(ConsumerBusyError):
        await join(plane, MINE, 1)
    await plane.call((await plane.controller()).split(0))
    await asyncio.sleep(1)
    assert inbox.ids == [1, 2, 3]


async def test_a_name_that_a_dead_connection_holds_is_free_once_it_gave_no_sign(plane: ControlPlane) -> None:
    await plane.lead()
    await join(plane, MINE, 1, SilentConsumer())
    assert ids_of((await join(plane, THEIRS)).assignment) == [0, 1]


async def fail_over(plane: ControlPlane) -> None:
    plane.kill()
    await plane.boot()
    await plane.controller()


@pytest.mark.parametrize("back_after_s", [0.0, 0.5])
async def test_the_next_leader_keeps_a_name_for_its_holder(plane: ControlPlane, back_after_s: float) -> None:
    await plane.lead()
    await join(plane, MINE)
    await fail_over(plane)
    stranger = asyncio.ensure_future(join(plane, THEIRS))
    await asyncio.sleep(back_after_s)
    assert not stranger.done()
    assert ids_of((await join(plane, MINE, 2)).assignment) == [0, 1]
    came_back_at = plane.loop.time()
    with pytest.raises(ConsumerBusyError, match="from host-11:1"):
        await stranger
    assert plane.loop.time() - came_back_at < 0.1


async def test_the_next_leader_gives_a_name_away_when_its_holder_does_not_return(plane: ControlPlane) -> None:
    await plane.lead()
    await join(plane, MINE)
    await fail_over(plane)
    began_at = plane.loop.time()
    await join(plane, THEIRS)
    assert RETURN_S / 2 < plane.loop.time() - began_at < RETURN_S + 0.1
    with pytest.raises(ConsumerBusyError):
        await join(plane, MINE, 2)


@pytest.mark.parametrize(("instance", "wait_s"), [(THEIRS, RETURN_S), (None, 0.0)])
async def test_the_next_leader_keeps_no_name_for_long_nor_from_clients_without_an_instance(
    plane: ControlPlane, instance: int | None, wait_s: float
) -> None:
    await plane.lead()
    await join(plane, MINE)
    await fail_over(plane)
    await asyncio.sleep(wait_s)
    began_at = plane.loop.time()
    await join(plane, instance)
    assert plane.loop.time() - began_at < 0.1
