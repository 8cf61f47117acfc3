"""One attempt of a handler with a message: its time, and its error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from inspect import isasyncgen, isawaitable, isgenerator
from types import CoroutineType
from typing import Any, Generic, TypeVar

from anabranch.client.consume.handlers.run_options import Handler, RunCounts
from anabranch.client.message import Message
from anabranch.errors import InvalidConfigurationError

T = TypeVar("T")


class HandlerKindError(InvalidConfigurationError):
    """A handler of the wrong kind: a plain function where a coroutine function is needed, or vice versa."""


def check_callable(handler: object) -> None:
    """Raise HandlerKindError for an object that cannot be called, before it fails with each message."""
    if not callable(handler):
        raise HandlerKindError(f"the handler must be a function, not {handler!r}")


def begin(handler: Handler[T], message: Message[T]) -> Awaitable[object]:
    """Call a handler; raises HandlerKindError if there is nothing to await."""
    work = handler(message)
    if type(work) is CoroutineType or isawaitable(work):
        return work
    refuse_generator(handler, work)
    raise HandlerKindError(f"the handler {handler!r} is a plain function; write it with `async def`")


def refuse_generator(handler: object, result: object) -> None:
    """Raise HandlerKindError for the result of a generator function, because calling it has run nothing."""
    if isgenerator(result) or isasyncgen(result):
        raise HandlerKindError(f"the handler {handler!r} has a `yield`, so a call runs nothing of it")


class HandlerAttempts(Generic[T]):
    """Calls the handler of a run, each time for at most `timeout_s`."""

    def __init__(self, handler: Handler[T], timeout_s: float | None, counts: RunCounts) -> None:
        self._handler = handler
        self._timeout_s = timeout_s
        self._counts = counts
        self.cancelled = False
        """Whether the run cancels its handlers, because it ends."""

    async def make(self, message: Message[T]) -> BaseException | None:
        """Run the handler; return its error, also if the handler cancelled itself.

        Raises HandlerKindError, because no attempt with this handler can succeed.
        """
        timeout_s = self._timeout_s
        try:
            if timeout_s is None:
                await begin(self._handler, message)
            else:
                async with asyncio.timeout(timeout_s) as limit:
                    await begin(self._handler, message)
        except HandlerKindError:
            raise
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
                # The error of the timeout has no text, and the traceback of this module.
                return TimeoutError(f"the handler took longer than {timeout_s:g} s")
            return error
        return None
