"""Background work of a broker that nobody waits for, all of it known and ended together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_logger = logging.getLogger(__name__)


class Tasks:
    """Tasks that live until they are done or `stop` is called.

    Not a TaskGroup, which ends all of its tasks when one fails: here each serves another client.
    """

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stopped = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], inner: Coroutine[Any, Any, None] | None = None) -> None:
        """Run `work`; an error that it does not handle is logged here, where it ends.

        `inner` is what `work` awaits: it is not left behind when `work` ends before it began.
        """
        if self._stopped:
            work.close()
            if inner is not None:
                inner.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        if inner is not None:
            task.add_done_callback(lambda _: inner.close())

    async def stop(self) -> None:
        """Cancel what runs and wait for it to end; later work is dropped."""
        self._stopped = True
        running = list(self._tasks)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("background work failed", exc_info=error)
