"""Runs of blocking consumers: handlers in threads, everything else in the thread of the client's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from inspect import isawaitable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from anabranch.client.blocking.taken import TakenMessages
from anabranch.client.consume.consumers.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.consumers.stream_consumer import AsyncStreamConsumer
from anabranch.client.consume.consumers.subscription_parts import SeekTarget
from anabranch.client.consume.handlers.attempts import HandlerKindError, check_callable, refuse_generator
from anabranch.client.consume.handlers.run_options import RunArguments, RunOrder, RunStatistics
from anabranch.client.consume.handlers.runs import FLUSH_S
from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.message import Message
from anabranch.client.options import Seconds, positive, seconds
from anabranch.client.schema import V

W = TypeVar("W")
R = TypeVar("R", bound=AsyncQueueConsumer[Any] | AsyncStreamConsumer[Any])


class RunningConsumer(Generic[R, V]):
    """A blocking consumer that can hand its messages to handlers in threads, and move its subscription.

    It adds to a `Consumer`, which has the attributes that are named here.
    """

    _twin: R
    _inbox: Inbox[V]
    _taken: TakenMessages[V]
    _lock: threading.Lock

    if TYPE_CHECKING:

        def _run(self, method: str, work: Callable[[], Coroutine[Any, Any, W]]) -> W: ...

    @property
    def run_statistics(self) -> RunStatistics | None:
        """The numbers of the present run, or of the last one; None before the first."""
        return self._twin.run_statistics

    def run(
        self,
        handler: Callable[[Message[V]], object],
        *,
        concurrency: int = 500,
        order: RunOrder | None = None,
        **more: Unpack[RunArguments],
    ) -> RunStatistics:
        """Handle messages in up to `concurrency` threads until the run is stopped; return its statistics.

        The run ends when another thread closes the consumer, as `stop` says, or with KeyboardInterrupt. A
        thread cannot be cancelled: the key of a handler that takes too long waits until the handler returns.
        `AsyncStreamConsumer.run` describes the order, the acknowledgements and the failures.
        """
        check_callable(handler)
        threads = ThreadPoolExecutor(positive("concurrency", concurrency), "anabranch handler")
        ended = threading.Event()
        # Earlier calls may have taken messages that they did not return. A thread that holds the lock waits
        # for the loop's thread, which therefore must not wait for the lock.
        with self._lock:
            taken = self._taken.waiting()
            self._taken.clear()

        async def serve() -> RunStatistics:
            try:
                self._inbox.hand_out_again(taken)
                work = _in_threads(threads, handler)
                return await self._twin.run(work, concurrency=concurrency, order=order, **more)
            finally:
                ended.set()

        try:
            return self._run("run", serve)
        except KeyboardInterrupt:
            ended.wait(seconds("grace", more.get("grace", 30.0), zero=True) + FLUSH_S)
            raise
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def seek(self, to: SeekTarget, timeout: Seconds | None = None) -> None:
        """Continue at another place of the topic: at a time, at its beginning or end, or after a message.

        This moves the subscription, for all its consumers; `AsyncStreamConsumer.seek` says how far.
        """
        self._run("seek", lambda: self._twin.seek(to, timeout))
        with self._lock:
            self._taken.clear()

    def unsubscribe(self, timeout: Seconds | None = None) -> None:
        """Delete the subscription and close this consumer, which must be the last one.

        Raises ConsumerBusyError if the subscription has other consumers; it stays then. This consumer is
        closed in any case.
        """
        try:
            self._run("unsubscribe", lambda: self._twin.unsubscribe(timeout))
        finally:
            self._taken.clear()

    def release_parked(self, key: str | None = None) -> int:
        """Let keys continue that this consumer has parked, or one of them; return their number."""
        return self._run("release_parked", lambda: self._twin.release_parked(key))


def _call(handler: Callable[[Message[V]], object], message: Message[V]) -> None:
    found = handler(message)
    if isawaitable(found):
        if isinstance(found, CoroutineType):
            found.close()
        raise HandlerKindError(f"the handler {handler!r} is not a plain function; use AsyncClient with it")
    refuse_generator(handler, found)


def _in_threads(
    threads: ThreadPoolExecutor, handler: Callable[[Message[V]], object]
) -> Callable[[Message[V]], Awaitable[object]]:
    loop = asyncio.get_running_loop()

    async def handle(message: Message[V]) -> None:
        # The handler sees the context of its interceptors, such as the span of a trace.
        attempt = loop.run_in_executor(threads, copy_context().run, _call, handler, message)
        try:
            await asyncio.shield(attempt)
        except asyncio.CancelledError:
            # The next message of the key must not start before this handler has returned.
            while not attempt.done():
                await asyncio.wait([attempt])
            if not attempt.cancelled():
                attempt.exception()
            raise

    return handle
