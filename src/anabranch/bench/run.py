"""One run: how many messages it may still move, when it ends, and what it leaves behind.

A run ends after its number of messages, after its time, or by a signal, and gives its figures in each case.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from anabranch import AsyncClient
from anabranch.bench.tally import BenchTally
from anabranch.errors import TopicNotFoundError

now = time.perf_counter


@dataclass(frozen=True, slots=True)
class Ending:
    """When a run ends by itself; a run with neither ends by a signal."""

    count: int | None
    duration_s: float | None


class BenchRun:
    """The state that the producers and consumers of one run share."""

    def __init__(self, ending: Ending) -> None:
        self.stored = BenchTally()
        self.received = BenchTally()
        self.left: list[str] = []
        """The things that the run leaves at the broker, in words for the operator."""
        self.signal_number: int | None = None
        self._count = ending.count
        self._duration_s = ending.duration_s
        self._moved = 0
        self._moved_at = now()
        self._deadline = float("inf")
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Begin the time of the run."""
        self._moved_at = now()
        if self._duration_s is not None:
            self._deadline = self._moved_at + self._duration_s

    def room(self, wanted: int) -> int:
        """Return how many of the wanted messages may be moved next; 0 when the run has ended."""
        if now() >= self._deadline:
            self.end()
        if self._ended.is_set():
            return 0
        return wanted if self._count is None else min(wanted, self._count - self._moved)

    def move(self, messages: int) -> None:
        """Count messages that were sent or received; the last one ends the run."""
        self._moved += messages
        self._moved_at = now()
        if self._count is not None and self._moved >= self._count:
            self.end()

    def idle_s(self) -> float:
        """Return the seconds since a message was moved."""
        return now() - self._moved_at

    def end(self) -> None:
        self._ended.set()

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the run."""
        seconds = min(seconds, max(0.0, self._deadline - now()))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)

    async def note_topic(self, client: AsyncClient, topic: str) -> None:
        """Note that the run creates the topic if it does not exist; topics are kept."""
        try:
            await client.layout(topic)
        except TopicNotFoundError:
            self.left.append(f"the topic {topic}, which is new; `anabranch topic delete` removes it")

    @contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """End the run at SIGINT or SIGTERM, so that it can clean up and show its figures."""
        if threading.current_thread() is not threading.main_thread():
            # Python takes signals in the main thread only.
            yield
            return
        loop = asyncio.get_running_loop()

        def interrupt(number: int) -> None:
            self.signal_number = number
            self.end()
            # A second signal interrupts the cleaning up as well.
            loop.remove_signal_handler(number)

        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, interrupt, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Do all of this at the same time; the first failure ends the rest and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
