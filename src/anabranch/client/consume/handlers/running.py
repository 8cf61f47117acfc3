"""One run of a consumer: messages in, handlers started, finished messages acknowledged.

`KeyLines` decides which message may start; this shell takes messages from the consumer, runs the handlers and
tells the consumer which messages they have finished. A worker is a task that handles one message after
another, so that a busy run makes no task for each message.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from anabranch.aio import TaskRegistry
from anabranch.client.consume.alarm import Alarm
from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.handlers.attempts import HandlerAttempts
from anabranch.client.consume.handlers.run_options import (
    Handler,
    RunCounts,
    RunOptions,
    RunStatistics,
    stop_given,
)
from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.decide.consuming.failures import Fate, after_failure, asked_pause_s
from anabranch.client.decide.consuming.key_lines import KeyLine, KeyLines
from anabranch.client.message import Message, again, entry_of, number_of, ordering_key
from anabranch.client.net.closing import Deadline
from anabranch.client.options import DeadLetter, Seconds, log
from anabranch.errors import AlreadyClosedError, AnabranchError, in_words

T = TypeVar("T")

TAKEN_MAX = 256
"""Messages that a run takes at a time, before handlers have a turn."""

CANCELLED_S = 1.0
"""How long the run waits for handlers that it has cancelled."""


class FinishedAcks(Protocol):
    """The acknowledgements of the consumer, as its runs use them."""

    def finished(self, message: Message[Any]) -> None:
        """Acknowledge a message, as soon as the messages before it allow."""

    async def flush(self, timeout: Seconds | None = None) -> None:
        """Send acknowledgements and return when they are confirmed."""


class HandlerFailures(Protocol):
    """The failure policy of the consumer, as its runs use it."""

    dead_letter: DeadLetter | None

    def redeliveries(self, message: Message[Any]) -> int:
        """Return how often a message was delivered before."""

    async def give_back(self, message: Message[Any], delay_s: float) -> bool:
        """Let the broker deliver the message again; False if the consumer keeps the order of keys."""

    async def bury(self, message: Message[Any], reason: str) -> None:
        """Send a message to the dead letter topic and acknowledge it; raises if that fails."""

    def park(self, message: Message[Any], reason: str) -> bool:
        """Give a message and the later ones of its bucket to the broker; False if the run keeps them."""


class RunParts(NamedTuple, Generic[T]):
    """The parts of a consumer that a run uses."""

    context: ConsumerContext
    inbox: Inbox[T]
    acks: FinishedAcks
    failures: HandlerFailures


class Running(Generic[T]):
    """The handlers of one consumer and the messages that wait for them."""

    def __init__(self, parts: RunParts[T], handler: Handler[T], options: RunOptions) -> None:
        self._context, self._inbox, self._acks, self._failures = parts
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._lines: KeyLines[Message[T]] = KeyLines(options.concurrency)
        self._workers = TaskRegistry()
        self._at_work: dict[asyncio.Task[Any], KeyLine[Message[T]]] = {}
        """The workers, and the lines whose first messages they handle."""
        self._alarm = Alarm(self._loop, self._resume)
        self._room = asyncio.Event()
        self._full = False
        self._room_at = options.look_ahead - max(1, min(TAKEN_MAX, options.look_ahead // 4))
        self._bytes = 0
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._cut_short: list[Message[T]] = []
        """Messages whose handlers were cancelled when the run ended."""
        self._fault: BaseException | None = None
        """An exception of a handler that is not an error, such as SystemExit; it ends the run."""
        self._counts = RunCounts()
        self._attempts = HandlerAttempts(handler, options.timeout_s, self._counts)

    @property
    def held(self) -> int:
        """Messages that are running or wait."""
        return self._lines.held

    @property
    def statistics(self) -> RunStatistics:
        return self._counts.statistics(self._lines, self._bytes)

    async def run(self) -> None:
        """Handle messages until the run is stopped; raises the error that keeps the consumer from reading."""
        tasks = TaskRegistry()
        feeding = tasks.start(self._feed(), "run: take messages", awaited=True)
        stops = [
            tasks.start(stop_given(self._options.stop), "run: wait for stop", awaited=True),
            tasks.start(self._stopping.wait(), "run: wait for close", awaited=True),
        ]
        try:
            await asyncio.wait([feeding, *stops], return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                await tasks.stop()
            finally:
                try:
                    await self._wind_down()
                finally:
                    self._ended.set()
        if self._fault is not None:
            raise self._fault
        if not feeding.cancelled() and (error := feeding.exception()) is not None:
            raise error

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def stop(self, deadline: Deadline, handlers_s: float) -> None:
        """End the run; handlers that take longer than `handlers_s`, or their grace time, are cancelled."""
        self._stopping.set()
        if asyncio.current_task() in self._at_work:
            # A handler closes the consumer and would wait for itself.
            return
        if not await deadline.allow(self._ended.wait(), handlers_s):
            self._cut()
            await deadline.allow(self._ended.wait(), CANCELLED_S)

    def withdraw(self, unwanted: Callable[[Message[T]], bool]) -> list[Message[T]]:
        """Remove messages whose handlers have not started; the broker delivers them again."""
        removed = self._lines.withdraw(unwanted)
        for message in removed:
            self._release(message)
        self._start()
        return removed

    def release(self, wanted: Callable[[Message[T]], bool]) -> int:
        """Let the lines of parked keys continue; return how many there are."""
        released = self._lines.release(wanted)
        self._start()
        return released

    # Taking messages.

    async def _feed(self) -> None:
        lines, options = self._lines, self._options
        while True:
            while lines.held > self._room_at or self._bytes >= options.look_ahead_bytes:
                self._full = True
                self._room.clear()
                await self._room.wait()
            try:
                messages = await self._inbox.receive_many(min(TAKEN_MAX, options.look_ahead - lines.held))
            except AlreadyClosedError:
                return
            self._add(messages)
            self._start()
            # Buffered messages are taken without waiting, so handlers must get a turn here.
            await asyncio.sleep(0)

    def _add(self, messages: Iterable[Message[T]]) -> None:
        by_key, add = self._options.by_key, self._lines.add
        for message in messages:
            entry = entry_of(message)
            if not entry.unfinished:
                self._bytes += len(entry.data)
            entry.unfinished += 1
            add(ordering_key(message) if by_key else None, message)

    def _release(self, message: Message[T]) -> None:
        """Note that a message left the run."""
        entry = entry_of(message)
        entry.unfinished -= 1
        if not entry.unfinished:
            self._bytes -= len(entry.data)
        if self._full and self._lines.held <= self._room_at and self._bytes < self._options.look_ahead_bytes:
            self._full = False
            self._room.set()

    # Handling them.

    def _start(self) -> None:
        while not self._stopping.is_set() and (line := self._lines.start()) is not None:
            task = self._workers.start(self._work(line), "run: handle messages")
            self._at_work[task] = line
            task.add_done_callback(self._worker_ended)

    async def _work(self, line: KeyLine[Message[T]] | None) -> None:
        """Handle the first message of a line, then those of any line, as long as lines are ready."""
        start, stopping, at_work = self._lines.start, self._stopping.is_set, self._at_work
        attempt = self._attempts.make
        task: Any = asyncio.current_task()
        while line is not None:
            at_work[task] = line
            error = await attempt(line.first)
            if error is None:
                self._finish(line)
            else:
                await self._failed(line, error)
            line = None if stopping() else start()

    def _worker_ended(self, task: asyncio.Task[Any]) -> None:
        line = self._at_work.pop(task)
        fault = None if task.cancelled() else task.exception()
        self._fault = self._fault or fault
        if task.cancelled() or fault is not None:
            # No later message of the key may start in this run.
            self._stopping.set()
            self._cut_short.append(line.first)
            self._leave(line)

    def _finish(self, line: KeyLine[Message[T]]) -> None:
        message = line.first
        self._lines.finish(line)
        self._release(message)
        self._counts.handled += 1
        self._acks.finished(message)

    async def _failed(self, line: KeyLine[Message[T]], error: BaseException) -> None:
        context, failures, message = self._context, self._failures, line.first
        self._counts.failed += 1
        if context.interceptors is not None:
            context.interceptors.refused(message, in_words(error))
        redeliveries = failures.redeliveries(message)
        fate = after_failure(redeliveries, failures.dead_letter)
        if fate is Fate.SKIP and await self._bury(message, error):
            self._leave(line)
            return
        if fate is Fate.PARK:
            log.error("%s: the key of %r is parked: %s", context.topic, message, in_words(error))
            self._counts.parked += 1
            if failures.park(message, in_words(error)):
                self._leave(line)
            else:
                self._lines.pause(line, again(message), math.inf)
            return
        delay_s = asked_pause_s(error)
        if delay_s is None:
            delay_s = self._options.retry.delay(redeliveries, context.pool.rng)
        log.warning(
            "%s: the handler failed with %r; it comes again in %.3g s: %s",
            context.topic,
            message,
            delay_s,
            in_words(error),
            exc_info=error if not redeliveries else None,
        )
        if not self._options.by_key and await failures.give_back(message, delay_s):
            self._leave(line)
            return
        self._lines.pause(line, again(message), self._loop.time() + delay_s)
        self._schedule()

    async def _bury(self, message: Message[T], error: BaseException) -> bool:
        """Send a message to the dead letter topic; False if that failed, too."""
        try:
            await self._failures.bury(message, in_words(error))
        except AnabranchError as problem:
            log.warning("%s: %r cannot become a dead letter: %s", self._context.topic, message, problem)
            return False
        self._counts.dead_letters += 1
        return True

    def _leave(self, line: KeyLine[Message[T]]) -> None:
        message = line.first
        self._lines.finish(line)
        self._release(message)

    def _schedule(self) -> None:
        due_at = self._lines.next_due
        if due_at is not None:
            self._alarm.set(due_at)

    def _resume(self) -> None:
        self._lines.resume(self._loop.time())
        self._start()
        self._schedule()

    # The end.

    async def _wind_down(self) -> None:
        """Let handlers finish within the grace time, and give the other messages back to the consumer."""
        self._stopping.set()
        self._alarm.cancel()
        try:
            others = [task for task in self._at_work if task is not asyncio.current_task()]
            if others:
                await asyncio.wait(others, timeout=self._options.grace_s)
        finally:
            self._cut()
            if self._at_work:
                await asyncio.wait(list(self._at_work), timeout=CANCELLED_S)
            self._hand_back()

    def _cut(self) -> None:
        """Cancel the handlers."""
        self._attempts.cancelled = True
        for task in self._at_work:
            task.cancel()

    def _hand_back(self) -> None:
        left = [*self._cut_short, *self.withdraw(lambda message: True)]
        self._cut_short = []
        stuck = self._lines.keys()
        if self._lines.running:
            log.warning("%s: handlers that do not end: %d", self._context.topic, self._lines.running)
        # A message must not be handled while the handler of an earlier message of its key still runs.
        free = [message for message in left if not stuck or ordering_key(message) not in stuck]
        self._inbox.hand_out_again(sorted(free, key=number_of))
