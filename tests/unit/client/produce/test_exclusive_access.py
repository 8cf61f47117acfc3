"""Exclusive producers: one that lost its access to another never takes it back by itself."""

from __future__ import annotations

import pytest

from anabranch.client.options import AccessMode
from anabranch.errors import ProducerFencedError
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
