"""How a leader runs its changes: the steps before and after each, and after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from anabranch.controller.topic.change_runner import ChangeRunner
from anabranch.controller.topic.leadership import Happened, Leadership, TopicEvent
from anabranch.errors import (
    LayoutError,
    NotConnectedError,
    NotLeaderError,
    StaleTermError,
    TopicNotFoundError,
)
from tests.harness.control import TOPIC, ControlPlane


class Settler:
    """Notes each step of the runner's changes, and when by the clock."""

    def __init__(self, lead: Leadership) -> None:
        self.trace: list[str] = []
        self.settled_at_s: list[float] = []
        self.settles = True
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
