"""The compiled `enqueue` of a producer: a coroutine like that of the method, which takes unusual messages."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from anabranch import speedups
from anabranch.client.decide.producing.batcher import OpenBucket, SegmentBatcher, message_size
from anabranch.client.decide.producing.outgoing import OPEN, STORED
from anabranch.client.options import Batching
from anabranch.client.produce.futures import SendFuture
from anabranch.speedups import Counter, Enqueuer, RoomGate

pytestmark = pytest.mark.skipif(
    speedups.add_rows is None, reason="the package was built without a compiler, or runs from an archive"
)


class EnqueuingCase:
    """One open batch, and a slow way that only notes its messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Batching | None = None) -> None:
        self.gate, self.counter = RoomGate(), Counter()
        self.counter.last = -1
        batcher = SegmentBatcher((), limits or Batching())
        self.bucket: OpenBucket = batcher.buckets[0]
        self.batch = batcher.begin(self.bucket, 0.0)
        self.by_key: dict[Any, Any] = {
            key: (self.bucket, 7, message_size(b"", key)) for key in (None, "a", "b")
        }
        self.slow: list[Any] = []
        self.wait: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.enqueuer = Enqueuer(self.by_key, self.gate, self.counter, SendFuture, loop, self._slowly)
        self.enqueue: Callable[..., Any] = self.enqueuer.enqueue

    def stored_at(self, *futures: SendFuture) -> list[int]:
        """Complete the batch for a moment, and return the index of each message in it."""
        self.batch.count, self.batch.place, self.batch.state = len(self.batch.rows), (1, 2, 3), STORED
        found = [future.result() for future in futures]
        self.batch.state = OPEN
        assert {(id_.segment, id_.ledger, id_.entry) for id_ in found} == {(1, 2, 3)}
        return [id_.batch_index for id_ in found]

    async def _slowly(self, value: Any, **named: Any) -> str:
        self.slow.append((value, named))
        if self.wait is not None:
            await self.wait()
        return "slow"


@pytest.fixture
def case(loop: asyncio.AbstractEventLoop) -> EnqueuingCase:
    return EnqueuingCase(loop)


async def test_a_plain_message_gets_its_number_and_place(case: EnqueuingCase) -> None:
    first, second = await case.enqueue(b"one", key="a"), await case.enqueue(b"two")
    assert list(case.batch.rows) == [(b"one", "a", 0, 7), (b"two", None, 1, 7)]
    assert type(first) is SendFuture
    assert not first.done()
    assert case.stored_at(first, second) == [0, 1]
    limits = Batching()
    assert case.bucket.room == limits.max_messages - 2
    assert case.bucket.bytes_left == limits.max_bytes - message_size(b"one", "a") - message_size(b"two", None)
    assert (case.counter.last, case.slow) == (1, [])


async def test_a_message_is_added_when_its_call_is_awaited(case: EnqueuingCase) -> None:
    first, second = case.enqueue(b"one", key="a"), case.enqueue(b"two", key="a")
    assert len(case.batch.rows) == 0
    await second
    await first
    assert [row[0] for row in case.batch.rows] == [b"two", b"one"]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, {"key": "a"}),
        (bytearray(b"v"), {"key": "a"}),
        (b"v", {"key": b"a"}),
        (b"v", {"key": "c"}),
        (b"v", {"key": "\ud800"}),
        (b"v", {"key": 1}),
        (b"v", {"key": []}),
    ],
)
async def test_unusual_messages_take_the_slow_way(
    case: EnqueuingCase, value: Any, named: dict[str, Any]
) -> None:
    assert await case.enqueue(value, **named) == "slow"
    assert (case.slow, len(case.batch.rows), case.counter.last) == ([(value, named)], 0, -1)


@pytest.mark.parametrize("named", [{"properties": {"p": "v"}}, {"key": "a", "sequence_id": 3}])
async def test_messages_with_further_parts_take_the_slow_way(
    case: EnqueuingCase, named: dict[str, Any]
) -> None:
    assert await case.enqueue(b"v", **named) == "slow"
    assert case.slow == [(b"v", named)]


async def test_calls_with_wrong_arguments_raise_as_the_method_does(case: EnqueuingCase) -> None:
    with pytest.raises(TypeError):
        case.enqueue()
    with pytest.raises(TypeError):
        case.enqueue(b"v", "a")


async def test_a_full_memory_and_a_closed_producer_take_no_message(case: EnqueuingCase) -> None:
    waiting = case.enqueue(b"v", key="a")
    case.gate.full = True
    assert await waiting == "slow"
    case.gate.full, case.enqueuer.closed = False, True
    assert await case.enqueue(b"v", key="a") == "slow"
    case.enqueuer.closed = False
    assert type(await case.enqueue(b"v", key="a")) is SendFuture


@pytest.mark.parametrize(
    "limits", [Batching(max_messages=3), Batching(max_bytes=3 * message_size(b"v", "a"))]
)
async def test_the_message_that_fills_a_batch_takes_the_slow_way(
    loop: asyncio.AbstractEventLoop, limits: Batching
) -> None:
    case = EnqueuingCase(loop, limits)
    outcomes = [await case.enqueue(b"v", key="a") for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [SendFuture, SendFuture, str]


async def test_a_message_without_an_open_batch_takes_the_slow_way(case: EnqueuingCase) -> None:
    case.bucket.close()
    assert await case.enqueue(b"v", key="a") == "slow"


async def test_a_batch_with_unusual_rows_takes_the_slow_way(case: EnqueuingCase) -> None:
    case.batch.rows.append((b"v", b"\xff", 0, 7))
    assert await case.enqueue(b"v", key="a") == "slow"


async def test_a_call_can_be_awaited_once(case: EnqueuingCase) -> None:
    call = case.enqueue(b"v", key="a")
    await call
    with pytest.raises(RuntimeError, match="already awaited"):
        await call
    assert len(case.batch.rows) == 1


async def test_a_call_that_is_never_awaited_warns(case: EnqueuingCase) -> None:
    with pytest.warns(RuntimeWarning, match=r"AsyncProducer\.enqueue.*never awaited"):
        case.enqueue(b"v", key="a")
    case.enqueue(b"v", key="a").close()
    assert len(case.batch.rows) == 0


async def test_a_call_can_be_a_task(case: EnqueuingCase) -> None:
    quick = asyncio.create_task(case.enqueue(b"v", key="a"))
    assert type(await quick) is SendFuture
    futures = await asyncio.gather(case.enqueue(b"w", key="a"), case.enqueue(b"x", key="a"))
    assert case.stored_at(*futures) == [1, 2]
    case.gate.full, case.wait = True, lambda: asyncio.sleep(1)
    assert await asyncio.wait_for(case.enqueue(b"v", key="a"), 10) == "slow"


async def test_a_task_that_is_cancelled_before_its_start_adds_nothing(case: EnqueuingCase) -> None:
    task = asyncio.create_task(case.enqueue(b"v", key="a"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(case.batch.rows) == 0


async def test_the_slow_way_learns_that_its_caller_was_cancelled(case: EnqueuingCase) -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    case.gate.full, case.wait = True, wait
    task = asyncio.create_task(case.enqueue(b"v", key="a"))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


async def test_an_error_of_the_slow_way_reaches_the_caller(case: EnqueuingCase) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    case.gate.full, case.wait = True, fail
    call = case.enqueue(b"v", key="a")
    with pytest.raises(ValueError, match="no"):
        await call
    with pytest.raises(RuntimeError, match="already awaited"):
        await call


async def test_a_call_has_the_methods_of_a_coroutine(case: EnqueuingCase) -> None:
    with pytest.raises(StopIteration) as stopped:
        case.enqueue(b"v", key="a").send(None)
    assert type(stopped.value.value) is SendFuture
    with pytest.raises(ValueError, match="x"):
        case.enqueue(b"v", key="a").throw(ValueError("x"))
    with pytest.raises(ValueError, match="y"):
        case.enqueue(b"v", key="a").throw(ValueError, "y")
    with pytest.raises(TypeError):
        case.enqueue(b"v", key="a").throw("x")
    call = case.enqueue(b"v", key="a")
    with pytest.raises(TypeError, match="just-started"):
        call.send(1)
    call.close()
    assert len(case.batch.rows) == 1


async def test_a_waiting_call_can_be_closed(case: EnqueuingCase) -> None:
    case.gate.full, case.wait = True, lambda: asyncio.sleep(10)
    call = case.enqueue(b"v", key="a")
    assert call.send(None) is not None
    call.close()
    with pytest.raises(RuntimeError):
        call.send(None)


async def test_waiting_calls_that_nothing_refers_to_are_collected(case: EnqueuingCase) -> None:
    class CallHolder:
        call: Any

    async def wait(holder: CallHolder) -> None:
        await asyncio.sleep(10)

    holder = CallHolder()
    seen = weakref.ref(holder)
    case.gate.full, case.wait = True, partial(wait, holder)
    holder.call = case.enqueue(b"v", key="a")
    holder.call.send(None)
    case.wait = None
    del holder
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("wrong", range(4))
async def test_an_enqueuer_checks_its_parts(
    case: EnqueuingCase, loop: asyncio.AbstractEventLoop, wrong: int
) -> None:
    parts: list[Any] = [{}, case.gate, case.counter, SendFuture, loop, print]
    parts[wrong] = int
    with pytest.raises(TypeError):
        Enqueuer(*parts)
