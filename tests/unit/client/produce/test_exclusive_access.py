"""Exclusive producers: one that lost its access to another never takes it back by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from anabranch.client.options import AccessMode
from anabranch.errors import ProducerFencedError
from simulation.world.process import SimProcess
from tests.harness.cluster import TOPIC, Brokers, stored_messages

MODES: list[AccessMode] = ["exclusive", "wait_for_exclusive", "exclusive_with_fencing"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_fenced_producer_stays_fenced(brokers: Brokers, mode: AccessMode) -> None:
    async with brokers.client() as client:
        former = await client.create_producer(TOPIC, access_mode=mode)
        await former.send(b"former")
        successor = await client.create_producer(TOPIC, access_mode="exclusive_with_fencing")
        await successor.send(b"successor")
        for _ in range(3):
            with pytest.raises(ProducerFencedError):
                await former.send(b"too late")
        await successor.send(b"successor again")
        await successor.close()
        with pytest.raises(ProducerFencedError):
            await former.send(b"too late")
        assert {message.value for message in await stored_messages(client, 3)} == {
            b"former",
            b"successor",
            b"successor again",
        }


async def test_a_shared_producer_goes_on_after_the_exclusive_one_has_left(brokers: Brokers) -> None:
    async with brokers.client() as client:
        shared = await client.create_producer(TOPIC)
        await shared.send(b"before")
        owner = await client.create_producer(TOPIC, access_mode="exclusive_with_fencing")
        await owner.close()
        await shared.send(b"after")
        assert {message.value for message in await stored_messages(client, 2)} == {b"before", b"after"}


async def split(brokers: Brokers) -> None:
    await (await brokers.controller()).split(0)


async def split_and_merge(brokers: Brokers) -> None:
    controller = await brokers.controller()
    children = (await controller.split(0)).active
    await controller.merge([segment.id for segment in children])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", [split, split_and_merge])
async def test_a_fenced_producer_stays_fenced_on_the_successors_of_a_segment(
    brokers: Brokers, mode: AccessMode, change: Callable[[Brokers], Awaitable[None]]
) -> None:
    process = SimProcess(brokers.loop, "former")
    async with brokers.client() as early, brokers.client() as late:
        former = await process.spawn(early.create_producer(TOPIC, access_mode=mode))
        await process.spawn(former.send(b"former"))
        # The former producer learns that it was fenced only after its segment is sealed.
        process.pause()
        successor = await late.create_producer(TOPIC, access_mode="exclusive_with_fencing")
        await change(brokers)
        process.resume()
        with pytest.raises(ProducerFencedError):
            await process.spawn(former.send(b"too late"))
        await successor.send(b"successor")
        assert {message.value for message in await stored_messages(late, 2)} == {b"former", b"successor"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", [split, split_and_merge])
async def test_an_exclusive_producer_keeps_its_access_through_layout_changes(
    brokers: Brokers, mode: AccessMode, change: Callable[[Brokers], Awaitable[None]]
) -> None:
    async with brokers.client() as client:
        owner = await client.create_producer(TOPIC, access_mode=mode)
        await owner.send(b"before")
        await change(brokers)
        await owner.send(b"after")
        brokers.reset_links()
        await owner.send(b"again")
        assert len(await stored_messages(client, 3)) == 3
