from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest

from anabranch.errors import TooManyRequestsError
from anabranch.transport.door import Door
from anabranch.transport.seldom import PERIOD_S


class KnockingClient:
    """A connection that records the reason of its end."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def abort(self, error: Exception | None = None) -> None:
        self.error = error


def opened(door: Door[KnockingClient]) -> KnockingClient:
    client = door.open()
    assert client is not None
    return client


async def test_connections_count_from_the_moment_they_are_opened() -> None:
    door = Door("port", 3, KnockingClient)
    first, second = opened(door), opened(door)
    door.settle(first)
    assert (len(door), door.waiting) == (2, 1)
    door.leave(first)
    door.leave(second)
    door.leave(second)
    assert (len(door), door.waiting) == (0, 0)


async def test_a_full_door_drops_the_connection_that_waited_longest() -> None:
    door = Door("port", 3, KnockingClient)
    first, second, third = opened(door), opened(door), opened(door)
    door.settle(first)
    fourth = opened(door)
    assert len(door) == 3
    assert isinstance(second.error, TooManyRequestsError)
    assert [first.error, third.error, fourth.error] == [None, None, None]


async def test_a_connection_that_leaves_during_its_tls_handshake_ends_the_handshake() -> None:
    door = Door("port", 2, KnockingClient)
    ended: list[KnockingClient] = []
    shaking, done = opened(door), opened(door)
    for client in (shaking, done):
        assert door.shakes_hands(client, partial(ended.append, client))
    door.has_shaken_hands(done)
    late, _ = opened(door), opened(door)
    assert ended == [shaking]
    assert isinstance(done.error, TooManyRequestsError)
    assert not door.shakes_hands(shaking, lambda: None), "it was closed before the handshake began"
    assert door.shakes_hands(late, lambda: ended.append(late))
    door.clear()
    assert ended == [shaking, late]


async def test_a_door_full_of_clients_that_are_served_refuses_the_next() -> None:
    door = Door("port", 2, KnockingClient)
    served = opened(door), opened(door)
    for client in served:
        door.settle(client)
    assert door.open() is None
    assert (door.refused, [client.error for client in served]) == (1, [None, None])
    door.leave(served[0])
    assert door.open() is not None


async def test_a_connection_that_waits_again_queues_behind_the_others() -> None:
    door = Door("port", 2, KnockingClient)
    first, second = opened(door), opened(door)
    door.settle(first)
    door.wait_again(first)
    door.wait_again(first)
    opened(door)
    assert second.error is not None
    assert first.error is None


async def test_a_connection_that_left_does_not_wait_again() -> None:
    door = Door("port", 2, KnockingClient)
    gone = opened(door)
    door.leave(gone)
    door.wait_again(gone)
    assert (len(door), door.waiting, door.make_room()) == (0, 0, False)


async def test_a_full_door_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    door = Door("the port", 1, KnockingClient)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            opened(door)
        assert len(caplog.records) == 1
        await asyncio.sleep(PERIOD_S)
        opened(door)
    assert "1 silent ones were dropped" in caplog.records[0].message
    assert "100 silent ones were dropped and 0 new ones refused" in caplog.records[-1].message
