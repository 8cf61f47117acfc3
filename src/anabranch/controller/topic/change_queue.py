"""Changes of one topic, each in its turn: what was begun before is finished first, what it leaves is seen to.

Work that fails half-way leaves its leader unsure of what is stored: all is read again before the next turn,
which then comes by itself. Must not know what is changed, nor how it is made good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from anabranch.controller.topic.job_queue import JobQueue
from anabranch.controller.topic.leadership import Leadership
from anabranch.errors import (
    ConflictError,
    ConsumerBusyError,
    InvalidConfigurationError,
    LayoutError,
    NotAllowedError,
    NotLeaderError,
    SegmentNotFoundError,
    StaleTermError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    in_words,
)

T = TypeVar("T")

Work = Callable[[], Awaitable[T]]

REFUSALS = (
    ConflictError,
    ConsumerBusyError,
    InvalidConfigurationError,
    LayoutError,
    NotAllowedError,
    SegmentNotFoundError,
    SubscriptionNotFoundError,
)
"""Work that raises these has written nothing: the caller's matter, nothing here has to be made good."""


class ChangeQueue:
    """The turns of one leader; `troubles` shows what stands in the way, under "settle" and "background"."""

    def __init__(
        self,
        lead: Leadership,
        reload: Callable[[], Awaitable[None]],
        settle: Callable[[], Awaitable[bool]],
        lost: Callable[[], None],
        troubles: dict[str, str],
    ) -> None:
        """`reload` reads what is stored, `settle` finishes what was begun and says whether it could.

        `lost` is told when another leader took over, or the topic is gone.
        """
        self._world = lead.world
        self._name = lead.name
        self._reload = reload
        self._settle = settle
        self._lost = lost
        self._troubles = troubles
        self._jobs = JobQueue(lead.world.settings.jobs_max, str(lead.name))
        self._unsure = False
        self._delays_s = self._world.delays_s()
        self._retry_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self) -> None:
        self._jobs.start()

    async def stop(self) -> None:
        """Cancel what runs; those that wait are told to look for another leader."""
        self.close()
        await self._jobs.stop()

    @property
    def closed(self) -> bool:
        """Whether no more turns are taken."""
        return self._jobs.closed

    def close(self) -> None:
        """Take no more turns: whoever asks is told to look for another leader."""
        self._jobs.close()
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    def close_deleted(self) -> None:
        """Take no more turns: whoever asks is told that the topic is gone."""
        self._jobs.close(lambda: TopicNotFoundError(f"{self._name} was deleted"))

    async def run(
        self, work: Work[T], *, settle: bool = True, orphaned: Callable[[T], None] | None = None
    ) -> T:
        """Do `work` in turn; `orphaned` is told what came of it when the caller is gone.

        With `settle` only after all that was begun before.
        """
        return await self._jobs.run(lambda: self._turn(work, settle), orphaned=orphaned)

    def post(self, work: Work[None]) -> None:
        """Do `work` in turn, unless it waits already; nobody waits for it."""

        async def turn() -> None:
            try:
                await self._turn(work, settle=True)
                self._troubles.pop("background", None)
            except Exception as error:
                self._troubles["background"] = in_words(error)

        self._jobs.post(turn, work)

    async def settled(self) -> None:
        """Return when nothing is half done; raises what stands in the way."""
        await self.run(_nothing)

    async def _turn(self, work: Work[T], settle: bool) -> T:
        if settle:
            await self._guarded(self._make_good)
        result = await self._guarded(work, REFUSALS)
        if settle:
            await self._follow_up()
        return result

    async def _guarded(self, work: Work[T], harmless: tuple[type[Exception], ...] = ()) -> T:
        """Work that may fail half-way: afterwards nothing that is known counts until it was read again."""
        try:
            return await work()
        except harmless:
            raise
        except StaleTermError as error:
            self._depose()
            raise NotLeaderError(f"another broker leads {self._name} now") from error
        except TopicNotFoundError:
            self.close_deleted()
            self._depose()
            raise
        except Exception:
            self._unsure = True
            self._retry_soon()
            raise

    async def _follow_up(self) -> None:
        """The work is done and answered as such; what its consequences meet is dealt with later."""
        try:
            await self._guarded(self._make_good)
        except Exception as error:
            self._troubles["settle"] = in_words(error)

    async def _make_good(self) -> None:
        if self._unsure:
            await self._reload()
            self._unsure = False
        if await self._settle():
            self._delays_s = self._world.delays_s()
            self._troubles.pop("settle", None)
        else:
            self._retry_soon()

    def _retry_soon(self) -> None:
        if self._retry_timer is None and not self.closed:
            self._retry_timer = asyncio.get_running_loop().call_later(next(self._delays_s), self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self.post(_nothing)

    def _depose(self) -> None:
        self.close()
        self._lost()


async def _nothing() -> None:
    return None
