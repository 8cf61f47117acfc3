"""Futures of sends, as asyncio and callers use them."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.client.decide.producing.outgoing import FAILED, STORED, Outgoing, Places
from anabranch.client.produce.futures import BulkFuture, SendFuture, complete, follow, move


def batch(count: int = 3) -> Outgoing:
    made = Outgoing(0.0)
    made.count = count
    return made


def store(made: Outgoing) -> None:
    made.state = STORED
    made.place = (4, 5, 6)
    complete(made)


def fail(made: Outgoing, error: Exception) -> None:
    made.state = FAILED
    made.error = error
    complete(made)


def future(made: Outgoing, index: int = 0) -> SendFuture:
    return SendFuture(made, index, asyncio.get_running_loop())


async def test_a_batch_completes_all_its_messages_at_once() -> None:
    made = batch()
    futures = [future(made, index) for index in range(3)]
    waiting = asyncio.ensure_future(asyncio.gather(*futures))
    await asyncio.sleep(0)
    assert not any(one.done() for one in futures)
    store(made)
    ids = await waiting
    assert [str(id_) for id_ in ids] == ["4/5:6:0", "4/5:6:1", "4/5:6:2"]


async def test_an_outcome_can_be_awaited_before_and_after_it_is_there() -> None:
    made = batch()
    one = future(made)
    task = asyncio.ensure_future(_await(one))
    await asyncio.sleep(0)
    store(made)
    assert await task == await one == one.result()


async def _await(one: SendFuture) -> object:
    return await one


async def test_a_failure_is_raised_by_everything_that_looks() -> None:
    made = batch()
    one = future(made)
    with pytest.raises(asyncio.InvalidStateError):
        one.result()
    fail(made, ValueError("no"))
    assert one.peek() is not None
    assert not made.seen
    with pytest.raises(ValueError, match="no"):
        await one
    assert made.seen


async def test_cancelling_stops_the_waiting_and_not_the_message() -> None:
    made = batch()
    one, other = future(made, 0), future(made, 1)
    task = asyncio.ensure_future(_await(one))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert one.cancelled()
    store(made)
    assert (await other).batch_index == 1


async def test_wait_for_and_wait_and_shield_take_them() -> None:
    made = batch()
    one = future(made)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(one), 0.0)
    two = future(made, 1)
    asyncio.get_running_loop().call_soon(store, made)
    done, pending = await asyncio.wait([asyncio.ensure_future(two)])
    assert len(done) == 1
    assert not pending


async def test_callbacks_can_be_taken_back() -> None:
    made = batch()
    one = future(made)
    called: list[object] = []
    one.add_done_callback(called.append)
    assert one.remove_done_callback(called.append) == 1
    store(made)
    one.add_done_callback(called.append)
    await asyncio.sleep(0)
    assert called == [one]


async def test_messages_that_move_keep_their_waiting_callers() -> None:
    old, left, right = batch(2), batch(1), batch(5)
    first, second = future(old, 0), future(old, 1)
    task = asyncio.ensure_future(_await(first))
    bulk = BulkFuture(asyncio.get_running_loop())
    bulk.join(old)
    bulk.arm()
    await asyncio.sleep(0)
    move(old, Places([left, right], [0, 4]))
    assert not first.done()
    store(left)
    assert str(await task) == "4/5:6:0"
    assert not bulk.done()
    store(right)
    assert (await second).batch_index == 4
    await bulk


async def test_a_bulk_is_done_when_all_its_batches_are() -> None:
    loop = asyncio.get_running_loop()
    one, two = batch(), batch()
    bulk = BulkFuture(loop)
    bulk.join(one)
    bulk.join(one)
    store(one)
    bulk.join(two)
    bulk.arm()
    assert not bulk.done()
    store(two)
    assert bulk.done()
    await bulk


async def test_a_bulk_raises_its_first_failure_and_counts_as_looked_at() -> None:
    loop = asyncio.get_running_loop()
    one, two = batch(), batch()
    bulk = BulkFuture(loop)
    bulk.join(one)
    bulk.join(two)
    bulk.arm()
    fail(one, ValueError("first"))
    fail(two, ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        await bulk
    assert one.seen
    assert two.seen


async def test_an_empty_bulk_is_done_at_once() -> None:
    bulk = BulkFuture(asyncio.get_running_loop())
    bulk.arm()
    await bulk


async def test_cancelling_a_bulk_stops_the_waiting() -> None:
    made = batch()
    bulk = BulkFuture(asyncio.get_running_loop())
    bulk.join(made)
    bulk.arm()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bulk, 0.0)
    assert bulk.cancelled()
    store(made)


class RecordingListener:
    def __init__(self) -> None:
        self.settled: list[tuple[Outgoing, int]] = []

    def settle(self, batch: Outgoing, index: int) -> None:
        self.settled.append((batch, index))

    def fail(self, error: BaseException) -> None:
        raise AssertionError from error


async def test_a_listener_follows_its_message_to_another_batch() -> None:
    old, new = batch(1), batch(2)
    listener = RecordingListener()
    follow(old, 0, listener)
    move(old, Places([new], [1]))
    assert listener.settled == []
    store(new)
    assert listener.settled == [(new, 1)]


async def test_a_listener_of_a_batch_that_failed_already_is_notified_at_once() -> None:
    made, listener = batch(), RecordingListener()
    fail(made, ValueError("no"))
    follow(made, 2, listener)
    assert listener.settled == [(made, 2)]
