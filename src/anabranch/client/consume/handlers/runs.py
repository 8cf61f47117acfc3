"""The runs of one consumer: handlers that get its messages, one run at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.handlers.attempts import begin
from anabranch.client.consume.handlers.run_options import Handler, RunOptions, RunStatistics
from anabranch.client.consume.handlers.running import Running, RunParts
from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.consume.segments.segments import ConsumedSegments
from anabranch.client.message import Message, entry_of
from anabranch.client.net.closing import Deadline
from anabranch.client.options import log
from anabranch.client.received import Source
from anabranch.errors import AlreadyClosedError, AnabranchError, InvalidConfigurationError

T = TypeVar("T")

FLUSH_S = 5.0
"""Longest wait for the confirmation of acknowledgements at the end of a run."""


class HandlerRuns(Generic[T]):
    """Hands messages to the handlers of one run at a time."""

    def __init__(self) -> None:
        self.current: Running[T] | None = None
        """The present run, or the last one; None before the first."""

    async def run(self, parts: RunParts[T], handler: Handler[T], options: RunOptions) -> RunStatistics:
        """Handle messages until the run is stopped; return its statistics."""
        context = parts.context
        if context.closed:
            raise AlreadyClosedError("the consumer is closed")
        if self.current is not None and not self.current.ended:
            raise InvalidConfigurationError("this consumer runs already; it has one run at a time")
        if context.interceptors is not None:
            handler = context.interceptors.around(partial(begin, handler))
        running = self.current = Running(parts, handler, options)
        try:
            await running.run()
        finally:
            await _flush_quietly(parts)
        return running.statistics

    async def end(self, deadline: Deadline) -> None:
        """End the run, if there is one; acknowledgements get the last part of the time."""
        if self.current is not None:
            await self.current.stop(deadline, deadline.left_s - min(deadline.left_s / 2, FLUSH_S))

    @property
    def statistics(self) -> RunStatistics | None:
        """The numbers of the present run, or of the last one; None before the first."""
        return None if self.current is None else self.current.statistics

    @property
    def held(self) -> int:
        """Messages that the run has taken and not finished."""
        return 0 if self.current is None else self.current.held

    def withdraw(self, unwanted: Callable[[Message[T]], bool]) -> list[Message[T]]:
        """Forget messages whose handlers have not started: the broker delivers them again."""
        return [] if self.current is None else self.current.withdraw(unwanted)

    def withdraw_segment(self, source: Source) -> list[Message[T]]:
        """As `withdraw`, for the messages of a segment that the broker delivers again, here or elsewhere."""
        return self.withdraw(lambda message: entry_of(message).source is source)

    def release(self, wanted: Callable[[Message[T]], bool]) -> int:
        """Let keys continue that the run has parked; return their number."""
        return 0 if self.current is None else self.current.release(wanted)


class ReadingParts(NamedTuple, Generic[T]):
    """The parts that every consumer with a subscription has; its policies are made of them."""

    context: ConsumerContext
    segments: ConsumedSegments
    inbox: Inbox[T]
    runs: HandlerRuns[T]


async def _flush_quietly(parts: RunParts[T]) -> None:
    """Confirm the acknowledgements at the end of a run; they stay noted if that fails."""
    context = parts.context
    if context.closed or context.failure is not None:
        return
    try:
        await parts.acks.flush(min(FLUSH_S, context.pool.operation_timeout_s / 2))
    except AnabranchError as error:
        log.warning("%s: after the run: %s", context.topic, error)
