"""The client at brokers of Apache Pulsar; the brokers of these tests only give themselves out as such."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.client.net.topics.layout_watch import PULSAR_M1, routes_by_low_half
from anabranch.model.hashing import key_hash
from anabranch.model.routing import Router
from anabranch.protocol.connection import ServerMachine
from tests.harness.cluster import TOPIC, Brokers

LATER = "Pulsar Server5.0.0"


@pytest.fixture
def disguised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerMachine, "version", LATER)


@pytest.mark.parametrize(
    ("version", "low"),
    [
        (PULSAR_M1, True),
        ("Pulsar Server5.0.0-M1-SNAPSHOT", False),
        (LATER, False),
        ("Anabranch 0.1.0", False),
    ],
)
def test_the_version_of_a_broker_says_which_half_of_a_hash_picks_a_segment(version: str, low: bool) -> None:
    assert routes_by_low_half(version) is low


@pytest.mark.parametrize("low", [False, True])
async def test_keys_go_where_the_producers_of_the_broker_send_them(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, low: bool
) -> None:
    await brokers.publish(1, 1)
    await (await brokers.controller()).split(0)
    monkeypatch.setattr(ServerMachine, "version", PULSAR_M1 if low else LATER)
    async with brokers.client() as client:
        layout = (await client.layout(TOPIC)).layout
    assert layout.by_low_half is low
    router = Router(layout)
    raw = key_hash("bob")  # a85b 7bf2
    assert router.slot_of(raw) == (raw & 0xFFFF if low else raw >> 16)
    assert router.slot_of(router.moved_to(raw, 7)) == 7
    assert router.segment_for(raw).range.start == (0 if low else 0x8000)


async def test_a_consumer_leaves_a_group_by_the_end_of_its_connection(
    brokers: Brokers, disguised: None
) -> None:
    async with brokers.client() as client:
        await client.layout(TOPIC, create=True)
        await (await brokers.controller()).split(0)
        one = await client.subscribe_stream(TOPIC, "group", name="one", initial_position="earliest")
        other = await client.subscribe_stream(TOPIC, "group", name="other", initial_position="earliest")
        await asyncio.sleep(1)
        shared = other.assignment
        assert shared
        assert not set(shared) & set(one.assignment)
        await other.close()
        await asyncio.sleep(brokers.config.consumer_grace_s + 1)
        assert set(shared) <= set(one.assignment)
        assert client.stats.connections == 1, "producers and segments share one connection"


async def test_a_registration_that_the_broker_ends_is_made_again(brokers: Brokers, disguised: None) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "group", name="one", initial_position="earliest")
        brokers.reset_links()
        await asyncio.sleep(2)
        await (await client.create_producer(TOPIC)).send(b"one tea")
        assert (await consumer.receive(timeout=5)).data == b"one tea"
