"""What a controller does unasked: garbage, pruning, and a look at the load.

One task with two alarms. A duty that fails is shown and comes round again; it never ends the task. Must not
know how the duties are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from anabranch.errors import in_words

Duty = Callable[[], Awaitable[object]]


class Upkeep:
    """Does the `regular` duties at every interval and sooner when asked, `collect` when there is garbage.

    `troubles` shows, by the name of the duty, what went wrong the last time.
    """

    def __init__(
        self,
        regular: Mapping[str, Duty],
        collect: Duty,
        interval_s: Callable[[], float],
        troubles: dict[str, str],
    ) -> None:
        self._regular = regular
        self._collect = collect
        self._interval_s = interval_s
        self._troubles = troubles
        self._wake = asyncio.Event()
        self._look_at_s = asyncio.get_running_loop().time() + interval_s()
        self._collect_at_s = float("inf")
        self._task: asyncio.Task[None] | None = None

    def start(self, name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"upkeep {name}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look_within(self, delay_s: float) -> None:
        """Look again after `delay_s`, or earlier if that is planned already."""
        self._look_at_s = min(self._look_at_s, asyncio.get_running_loop().time() + delay_s)
        self._wake.set()

    def collect_within(self, delay_s: float) -> None:
        self._collect_at_s = min(self._collect_at_s, asyncio.get_running_loop().time() + delay_s)
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = min(self._look_at_s, self._collect_at_s)
            if due_s > loop.time():
                timer = loop.call_at(due_s, self._wake.set)
                try:
                    await self._wake.wait()
                finally:
                    timer.cancel()
                self._wake.clear()
            if self._collect_at_s <= loop.time():
                self._collect_at_s = float("inf")
                await self._do("garbage", self._collect)
            if self._look_at_s <= loop.time():
                self._look_at_s = loop.time() + self._interval_s()
                for what, duty in self._regular.items():
                    await self._do(what, duty)

    async def _do(self, what: str, duty: Duty) -> None:
        try:
            await duty()
            self._troubles.pop(what, None)
        except Exception as error:
            self._troubles[what] = in_words(error)
