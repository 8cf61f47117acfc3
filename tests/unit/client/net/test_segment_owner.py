"""Following a segment from broker to broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.client.decide.producing.outgoing import OPEN, STORED
from anabranch.client.net.reconnector import SegmentOwner
from anabranch.errors import NotConnectedError, ServiceNotReadyError
from tests.unit.client.fakes import FakeConnection, FakeHome, FakePool, settle_down, success

A = "pulsar://a:1"
B = "pulsar://b:2"


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def owner(url: str | None = A) -> SegmentOwner:
    pool: Any = FakePool(lambda message: success())
    return SegmentOwner(pool, "segment", url)


async def test_an_attempt_and_a_pause_end_when_the_layout_names_another_broker() -> None:
    loop = asyncio.get_running_loop()
    followed = owner()
    loop.call_later(5, followed.layout_named, A, None)
    loop.call_later(6, followed.layout_named, None, None)
    loop.call_later(7, followed.layout_named, B, None)
    assert not await followed.attempt(forever)
    assert loop.time() == 7, "the same broker again, or none, does not end the attempt"
    assert (await followed.connection()).address == ("b", 2)
    loop.call_later(1, followed.layout_named, A, None)
    await followed.pause(60)
    assert loop.time() == 8
    await followed.pause(60)
    assert loop.time() == 68


async def test_another_broker_may_be_named_in_the_moment_a_pause_ends() -> None:
    loop = asyncio.get_running_loop()
    followed = owner()
    pausing = asyncio.ensure_future(followed.pause(60))
    await asyncio.sleep(0)
    heard: list[bool] = []
    # The callback runs in the same turn of the loop, after the pause's own timer.
    loop.call_at(60 + 5e-10, lambda: heard.append(followed.layout_named(B, None)))
    await pausing
    assert heard == [False]
    assert (await followed.connection()).address == ("b", 2)


async def test_errors_of_an_attempt_are_raised() -> None:
    async def fail() -> None:
        raise TimeoutError

    followed = owner()
    with pytest.raises(TimeoutError):
        await followed.attempt(fail)
    assert not followed.layout_named(B, None), "no connection to leave, and no attempt to end"


async def test_a_connection_to_the_named_broker_is_kept() -> None:
    followed = owner(None)
    there: Any = FakeConnection(lambda message: None, ("a", 1))
    elsewhere: Any = FakeConnection(lambda message: None, ("b", 2))
    assert not followed.layout_named(A, there)
    assert followed.layout_named(B, there)
    assert not followed.layout_named(B, there), "the layout named this broker before"
    assert followed.layout_named(A, elsewhere)


async def test_a_producer_leaves_a_silent_broker_when_the_layout_names_another() -> None:
    """The lease of a paused broker ends long before the client's timeout."""

    pool = FakePool(lambda message: asyncio.get_running_loop().create_future())
    home = FakeHome(pool)
    segment = home.segment(A)
    await settle_down()
    home.add(segment, 3)
    await asyncio.sleep(5)
    pool.answer = lambda message: success()
    segment.owned_by(B)
    await settle_down()
    assert pool.asked == [A, B]
    assert pool.connections[1].sequences() == [[0], [1], [2]]
    assert not pool.connections[0].producers


async def test_a_producer_that_follows_its_segment_sends_again_only_what_is_not_stored() -> None:
    last = -1
    pool = FakePool(lambda message: success(last))
    home = FakeHome(pool)
    segment = home.segment(A)
    await settle_down()
    batches = home.add(segment, 4)
    former = pool.connections[0]
    former.receipt(0)
    last = 1
    segment.owned_by(B)
    home.add(segment, 1)
    assert not former.producers, "a late answer of the former broker reaches no producer"
    await settle_down()
    assert [batch.state for batch in batches] == [STORED, STORED, OPEN, OPEN]
    assert pool.connections[1].sequences() == [[2], [3], [4]]


async def test_after_a_lost_connection_the_owner_is_looked_up() -> None:
    pool = FakePool(lambda message: success())
    home = FakeHome(pool)
    segment = home.segment(A)
    await settle_down()
    pool.connections[0].lose()
    await settle_down()
    assert pool.asked == [A, None]
    assert segment.is_attached


async def test_a_takeover_is_found_soon_without_a_new_layout() -> None:
    pool = FakePool(lambda message: ServiceNotReadyError("no broker owns the segment now"))
    home = FakeHome(pool)
    segment = home.segment(A)
    await asyncio.sleep(60)
    pool.answer = lambda message: success()
    await asyncio.sleep(1.1)
    assert segment.is_attached


async def test_a_settling_producer_follows_its_sealed_segment() -> None:
    pool = FakePool(lambda message: success())
    home = FakeHome(pool)
    segment = home.segment(A)
    await settle_down()
    batches = home.add(segment, 2)
    pool.refuse = True
    pool.connections[0].lose()
    segment.depart()
    await asyncio.sleep(3)
    assert not segment.life.settled
    pool.refuse = False
    pool.answer = lambda message: success(0)
    segment.owned_by(B)
    await settle_down()
    assert segment.life.settled
    assert [batch.state for batch in batches] == [STORED, OPEN]


async def test_a_producer_survives_a_broker_lost_before_its_answer() -> None:
    pool = FakePool(lambda message: NotConnectedError("lost"))
    home = FakeHome(pool)
    segment = home.segment(A)
    await settle_down()
    pool.answer = lambda message: success()
    segment.owned_by(B)
    await settle_down()
    assert segment.is_attached
    assert pool.asked[-1] == B
