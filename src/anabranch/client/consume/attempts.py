"""One attempt of a handler with a message: its time, and its error."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from anabranch.client.consume.run_options import Handler, RunCounts
from anabranch.client.message import Message

T = TypeVar("T")


class HandlerAttempts(Generic[T]):
    """Calls the handler of a run, each time for at most `timeout_s`."""

    def __init__(self, handler: Handler[T], timeout_s: float | None, counts: RunCounts) -> None:
        self._handler = handler
        self._timeout_s = timeout_s
        self._counts = counts
        self.cancelled = False
        """Whether the run cancels its handlers, because it ends."""

    async def make(self, message: Message[T]) -> BaseException | None:
        """Run the handler; return its error, also if the handler cancelled itself."""
        timeout_s = self._timeout_s
        try:
            if timeout_s is None:
                await self._handler(message)
            else:
                async with asyncio.timeout(timeout_s) as limit:
                    await self._handler(message)
        except asyncio.CancelledError as error:
            if self.cancelled:
                raise
            task: Any = asyncio.current_task()
            while task.cancelling():
                task.uncancel()
            return error
        except Exception as error:
            if timeout_s is not None and limit.expired():
                self._counts.timed_out += 1
            return error
        return None
