"""Runs each change of a topic: finishes earlier changes, carries the change out, follows its consequences.

`decide.after_change` says what follows from an outcome; the runner takes that step. Every change of a topic
passes here and then through the one `ChangeQueue`, so layout and subscription changes never overlap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from anabranch.controller.decide.after_change import NextStep, after_failure
from anabranch.controller.topic.change_queue import Change, ChangeQueue
from anabranch.controller.topic.leadership import Happened, Leadership, Notify
from anabranch.errors import NotLeaderError, StaleTermError, in_words

T = TypeVar("T")


class Settling(Protocol):
    """Brings the topic into a finished state; both steps may be repeated."""

    async def read_again(self) -> None:
        """Read all records, after a write whose outcome is unknown."""

    async def finish(self) -> bool:
        """Finish earlier changes and let all parts follow the layout; False if some cannot yet."""


class ChangeRunner:
    """The changes of the topic that `lead` leads."""

    def __init__(self, lead: Leadership, settling: Settling, notify: Notify) -> None:
        self.troubles: dict[str, str] = {}
        """The last errors of settling and of changes without a caller."""
        self._lead = lead
        self._settling = settling
        self._notify = notify
        self.queue = ChangeQueue(lead.context.settings.waiting_changes_max, str(lead.name))
        self._must_read = False
        self._delays_s = lead.context.delays_s()
        self._retry_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Finish the changes of earlier leaders, now or later; raises if this broker leads no more."""
        self.queue.start()
        try:
            await self.settled()
        except Exception as error:
            if self.queue.closed:
                raise
            self.troubles["settle"] = in_words(error)

    async def stop(self) -> None:
        """Cancel the running change; waiting callers get NotLeaderError."""
        await self.queue.stop()
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    async def run(
        self, change: Change[T], *, settle: bool = True, orphaned: Callable[[T], None] | None = None
    ) -> T:
        """Run `change` in turn, as `ChangeQueue.run` does; with `settle`, finish earlier changes first."""
        try:
            return await self.queue.run(lambda: self._run(change, settle), orphaned=orphaned)
        except StaleTermError as error:
            raise NotLeaderError(f"another broker leads {self._lead.name} now") from error

    def post(self, change: Change[None], key: object) -> None:
        """Run `change` in turn, without a caller, unless one with the same key waits."""

        async def in_background() -> None:
            try:
                await self._run(change, settle=True)
                self.troubles.pop("background", None)
            except Exception as error:
                self.troubles["background"] = in_words(error)

        self.queue.post(in_background, key)

    async def settled(self) -> None:
        """Return when no earlier change is unfinished; raises the error that prevents it."""
        await self.run(_no_change)

    async def _run(self, change: Change[T], settle: bool) -> T:
        if settle:
            await self._settle()
        try:
            result = await change()
        except Exception as error:
            self._take(after_failure(error, settling=False))
            raise
        if settle:
            # The change is committed, so its caller gets the result; failed consequences are retried later.
            try:
                await self._settle()
            except Exception as error:
                self.troubles["settle"] = in_words(error)
        return result

    async def _settle(self) -> None:
        try:
            if self._must_read:
                await self._settling.read_again()
                self._must_read = False
            complete = await self._settling.finish()
        except Exception as error:
            self._take(after_failure(error, settling=True))
            raise
        if complete:
            self._delays_s = self._lead.context.delays_s()
            self.troubles.pop("settle", None)
        else:
            self._retry_later()

    def _take(self, step: NextStep) -> None:
        match step:
            case NextStep.CONTINUE:
                return
            case NextStep.READ_AGAIN:
                self._must_read = True
                self._retry_later()
            case NextStep.STEP_DOWN | NextStep.TOPIC_GONE:
                self.queue.close(deleted=step is NextStep.TOPIC_GONE)
                self._notify(Happened.LEADERSHIP_LOST)

    def _retry_later(self) -> None:
        if self._retry_timer is None and not self.queue.closed:
            self._retry_timer = asyncio.get_running_loop().call_later(next(self._delays_s), self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self.post(_no_change, _no_change)


async def _no_change() -> None:
    return None
