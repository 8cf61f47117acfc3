from __future__ import annotations

import asyncio
from dataclasses import dataclass

from anabranch.broker.wire.publish_room import COUNT_S, SMALL_BYTES, PublishRoom
from anabranch.config.broker import BrokerConfig

MIB = 2**20


@dataclass
class WaitingEntries:
    """A connection of which only the waiting bytes count."""

    publish_bytes: int


def room_of(*waiting_bytes: int) -> PublishRoom:
    config = BrokerConfig(publish_pending_bytes_max=4 * MIB, publish_pending_total_bytes_max=10 * MIB)
    return PublishRoom(config, [WaitingEntries(size) for size in waiting_bytes])


async def test_one_connection_may_have_its_limit() -> None:
    room = room_of(4 * MIB)
    assert not room.exceeded(4 * MIB)
    assert room.exceeded(4 * MIB + 1)
    assert not room.has_room(3 * MIB)
    assert room.has_room(2 * MIB)


async def test_all_together_may_have_less_than_the_sum_of_their_limits() -> None:
    room = room_of(4 * MIB, 4 * MIB, 2 * MIB, MIB)
    assert room.exceeded(MIB)
    assert not room.has_room(MIB)


async def test_a_connection_with_few_waiting_bytes_is_always_read() -> None:
    room = room_of(20 * MIB)
    assert not room.exceeded(SMALL_BYTES)
    assert room.has_room(SMALL_BYTES)
    assert room.has_room(0)


async def test_the_bytes_are_counted_again_after_a_while() -> None:
    busy = WaitingEntries(20 * MIB)
    config = BrokerConfig(publish_pending_bytes_max=4 * MIB, publish_pending_total_bytes_max=10 * MIB)
    room = PublishRoom(config, [busy])
    assert room.exceeded(MIB)
    busy.publish_bytes = 0
    await asyncio.sleep(COUNT_S)
    assert not room.exceeded(MIB)
    assert room.has_room(MIB)
