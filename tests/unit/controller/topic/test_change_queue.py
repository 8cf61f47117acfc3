"""The queue of one topic's changes, and how its runner treats failures and earlier changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise

import pytest

from anabranch.aio import together
from anabranch.controller.topic.change_queue import ChangeQueue, ChangeRunner
from anabranch.controller.topic.leadership import Happened, Leadership, TopicEvent
from anabranch.errors import (
    ConflictError,
    LayoutError,
    NotConnectedError,
    NotLeaderError,
    StaleTermError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from tests.harness.control import TOPIC, ControlPlane


async def test_changes_run_one_after_the_other_in_the_order_they_came() -> None:
    queue = ChangeQueue(10, "t")
    queue.start()
    trace: list[str] = []

    async def job(name: str) -> str:
        trace.append(f"{name} begins")
        await asyncio.sleep(0)
        trace.append(f"{name} ends")
        return name

    assert await asyncio.gather(*(queue.run(partial(job, name)) for name in "abc")) == ["a", "b", "c"]
    assert trace == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    await queue.stop()


async def test_a_failure_reaches_its_caller_only() -> None:
    queue = ChangeQueue(10, "t")
    queue.start()

    async def fail() -> None:
        raise ValueError("mine")

    async def work() -> int:
        return 1

    with pytest.raises(ValueError, match="mine"):
        await queue.run(fail)
    assert await queue.run(work) == 1
    await queue.stop()


async def test_a_cancelled_caller_does_not_cancel_a_change_that_has_begun() -> None:
    queue = ChangeQueue(10, "t")
    queue.start()
    go_on = asyncio.Event()
    orphans: list[str] = []

    async def job() -> str:
        await go_on.wait()
        return "done"

    caller = asyncio.ensure_future(queue.run(job, orphaned=orphans.append))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    go_on.set()

    async def work() -> None:
        return None

    await queue.run(work)
    assert orphans == ["done"]
    await queue.stop()


async def test_a_result_is_not_lost_with_a_caller_that_is_cancelled_at_the_end_of_its_change() -> None:
    queue = ChangeQueue(10, "t")
    queue.start()
    orphans: list[str] = []

    async def job() -> str:
        asyncio.get_running_loop().call_soon(caller.cancel)
        return "done"

    caller = asyncio.ensure_future(queue.run(job, orphaned=orphans.append))
    await asyncio.gather(caller, return_exceptions=True)
    assert caller.cancelled()
    assert orphans == ["done"]
    await queue.stop()


async def test_a_change_whose_caller_gave_up_before_it_began_is_not_run() -> None:
    queue = ChangeQueue(10, "t")
    ran: list[int] = []

    async def job() -> None:
        ran.append(1)

    caller = asyncio.ensure_future(queue.run(job))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    queue.start()
    await queue.run(job)
    assert ran == [1]
    await queue.stop()


async def test_more_than_the_limit_is_refused_with_a_retryable_error() -> None:
    queue = ChangeQueue(1, "t")

    async def work() -> None:
        return None

    waiting = asyncio.ensure_future(queue.run(work))
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequestsError):
        await queue.run(work)
    queue.start()
    await waiting
    await queue.stop()


async def test_stopping_refuses_running_and_waiting_changes() -> None:
    queue = ChangeQueue(10, "t")
    queue.start()

    async def forever() -> None:
        await asyncio.Event().wait()

    callers = [asyncio.ensure_future(queue.run(forever)) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await queue.stop()
    for outcome in await asyncio.gather(*callers, return_exceptions=True):
        assert isinstance(outcome, NotLeaderError)
    with pytest.raises(NotLeaderError):
        await queue.run(forever)


async def test_a_queue_stops_also_when_its_change_fails_in_that_moment() -> None:
    queue = ChangeQueue(10, "t")
    queue.start()

    async def fail_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("the disk is gone")

    running = asyncio.ensure_future(queue.run(lambda: together([fail_at_the_end()])))
    for _ in range(3):
        await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await queue.stop()
    with pytest.raises(NotLeaderError):
        await running


async def test_a_change_posted_again_while_it_waits_runs_once_and_does_not_count_against_the_limit() -> None:
    queue = ChangeQueue(1, "t")
    queue.start()
    done: list[str] = []

    async def work(name: str) -> None:
        done.append(name)
        if len(done) == 1:
            queue.post(partial(work, "a"), "a")

    for name in "abab":
        queue.post(partial(work, name), name)
    await queue.run(partial(work, "caller"))
    assert done == ["a", "b", "caller", "a"], "work that has begun may be posted again"
    await queue.stop()


class Settler:
    """Notes each step of the runner's changes, and when by the clock."""

    def __init__(self, lead: Leadership) -> None:
        self.trace: list[str] = []
        self.settled_at_s: list[float] = []
        self.settles = True
        self.unfinished = False
        self.changes = ChangeRunner(lead, self, self.notify)

    async def read_again(self) -> None:
        self.trace.append("read again")

    async def finish(self) -> bool:
        self.trace.append("settle")
        self.settled_at_s.append(asyncio.get_running_loop().time())
        return self.settles

    def notify(self, event: TopicEvent) -> None:
        assert event is Happened.LEADERSHIP_LOST
        self.trace.append("lost")

    async def change(self) -> str:
        self.trace.append("change")
        return "done"

    async def traced(self, error: Exception | None = None) -> list[str]:
        """The steps of one change, which fails with this error or succeeds."""

        async def fail() -> None:
            self.trace.append("change")
            assert error is not None
            raise error

        self.trace.clear()
        if error is None:
            assert await self.changes.run(self.change) == "done"
        else:
            with pytest.raises((type(error), NotLeaderError)):
                await self.changes.run(fail)
        return list(self.trace)


@pytest.fixture
async def settler(plane: ControlPlane) -> AsyncIterator[Settler]:
    await plane.lead(1)
    settler = Settler(await plane.call(Leadership.take_over(plane.context, TOPIC)))
    await settler.changes.start()
    yield settler
    await settler.changes.stop()


async def test_earlier_changes_are_finished_first_and_the_parts_follow_afterwards(settler: Settler) -> None:
    assert await settler.traced() == ["settle", "change", "settle"]


async def test_after_a_failure_all_records_are_read_once_without_a_further_request(settler: Settler) -> None:
    assert await settler.traced(NotConnectedError("away")) == ["settle", "change"]
    await asyncio.sleep(1.0)
    assert settler.trace == ["settle", "change", "read again", "settle", "settle"]
    assert await settler.traced() == ["settle", "change", "settle"]


async def test_a_refusal_concerns_only_its_caller(settler: Settler) -> None:
    assert await settler.traced(LayoutError("sealed")) == ["settle", "change"]
    await asyncio.sleep(1.0)
    assert settler.trace == ["settle", "change"]


async def test_an_error_that_looks_like_a_refusal_does_not_end_a_recorded_change(settler: Settler) -> None:
    settler.unfinished = True
    assert await settler.traced(ConflictError("a race elsewhere")) == ["settle", "change"]
    await asyncio.sleep(1.0)
    assert settler.trace == ["settle", "change", "read again", "settle", "settle"]


async def test_pauses_between_failed_attempts_grow_and_start_again_after_a_success(settler: Settler) -> None:
    async def pauses_s() -> list[float]:
        settler.settled_at_s.clear()
        settler.settles = False
        await settler.changes.settled()
        await asyncio.sleep(4.0)
        at_s = sorted(set(settler.settled_at_s))
        settler.settles = True
        await asyncio.sleep(10.0)
        return [after - before for before, after in pairwise(at_s)]

    for pauses in (await pauses_s(), await pauses_s()):
        assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6], rel=0.11)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [(StaleTermError("newer"), NotLeaderError), (TopicNotFoundError("none"), TopicNotFoundError)],
)
async def test_a_former_leader_reports_the_loss_and_refuses_later_changes(
    settler: Settler, error: Exception, refusal: type[Exception]
) -> None:
    assert await settler.traced(error) == ["settle", "change", "lost"]
    assert settler.changes.queue.closed
    with pytest.raises(refusal):
        await settler.changes.run(settler.change)


async def test_a_change_without_a_caller_shows_its_failure_until_one_succeeds(settler: Settler) -> None:
    async def fail() -> None:
        raise NotConnectedError("away")

    async def succeed() -> None:
        pass

    settler.changes.post(fail, "x")
    await asyncio.sleep(0.01)
    assert "away" in settler.changes.troubles["background"]
    settler.changes.post(succeed, "x")
    await asyncio.sleep(0.01)
    assert settler.changes.troubles == {}
