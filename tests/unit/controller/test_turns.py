"""Turns of a leader: what comes before and after its work, and what a failure leads to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from anabranch.controller.topic.change_queue import ChangeQueue
from anabranch.controller.topic.leadership import Leadership
from anabranch.errors import (
    LayoutError,
    NotConnectedError,
    NotLeaderError,
    StaleTermError,
    TopicNotFoundError,
)
from tests.fakes.control import Plant
from tests.unit.controller.test_controller import lead


class Leader:
    """Notes what is done in its turns, and when by the clock."""

    def __init__(self, known: Leadership) -> None:
        self.trace: list[str] = []
        self.settled_at_s: list[float] = []
        self.settles = True
        self.turns = ChangeQueue(known, self.reload, self.settle, self.lost, {})
        self.turns.start()

    async def reload(self) -> None:
        self.trace.append("reload")

    async def settle(self) -> bool:
        self.trace.append("settle")
        self.settled_at_s.append(asyncio.get_running_loop().time())
        return self.settles

    def lost(self) -> None:
        self.trace.append("lost")

    async def work(self) -> str:
        self.trace.append("work")
        return "done"

    async def traced(self, error: Exception | None = None) -> list[str]:
        """What one piece of work leads to, that fails with this error or does not."""

        async def fail() -> None:
            self.trace.append("work")
            assert error is not None
            raise error

        self.trace.clear()
        if error is None:
            assert await self.turns.run(self.work) == "done"
        else:
            with pytest.raises((type(error), NotLeaderError)):
                await self.turns.run(fail)
        return list(self.trace)


@pytest.fixture
async def leader(plant: Plant) -> AsyncIterator[Leader]:
    leader = Leader((await lead(plant))._lead)
    yield leader
    await leader.turns.stop()
    await plant.stop()


async def test_what_was_begun_is_finished_first_and_what_work_leaves_is_seen_to(leader: Leader) -> None:
    assert await leader.traced() == ["settle", "work", "settle"]


async def test_after_a_failure_all_is_read_again_once_and_soon_though_nobody_asks(leader: Leader) -> None:
    assert await leader.traced(NotConnectedError("away")) == ["settle", "work"]
    await asyncio.sleep(1.0)
    assert leader.trace == ["settle", "work", "reload", "settle", "settle"]
    assert await leader.traced() == ["settle", "work", "settle"]


async def test_a_refusal_is_the_callers_matter(leader: Leader) -> None:
    assert await leader.traced(LayoutError("sealed")) == ["settle", "work"]
    await asyncio.sleep(1.0)
    assert leader.trace == ["settle", "work"]


async def test_what_cannot_be_settled_is_tried_ever_less_often_and_anew_when_it_was(leader: Leader) -> None:
    async def pauses_s() -> list[float]:
        leader.settled_at_s.clear()
        leader.settles = False
        await leader.turns.settled()
        await asyncio.sleep(4.0)
        at_s = sorted(set(leader.settled_at_s))
        leader.settles = True
        await asyncio.sleep(10.0)
        return [after - before for before, after in pairwise(at_s)]

    for pauses in (await pauses_s(), await pauses_s()):
        assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6], rel=0.11)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [(StaleTermError("newer"), NotLeaderError), (TopicNotFoundError("none"), TopicNotFoundError)],
)
async def test_who_leads_no_more_says_so_and_refuses_what_comes_later(
    leader: Leader, error: Exception, refusal: type[Exception]
) -> None:
    assert await leader.traced(error) == ["settle", "work", "lost"]
    assert leader.turns.closed
    with pytest.raises(refusal):
        await leader.turns.run(leader.work)
