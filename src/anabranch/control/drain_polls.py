"""Finds out when sealed segments are drained, because Pulsar does not report it.

A poll begins when the leader of a topic asks for a segment that is not drained yet. It ends when the segment
is drained, or when the topic is no longer led here. Polls of one segment become rarer while nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from anabranch.aio import Backoff, TaskRegistry
from anabranch.controller.ports.segments import Drained
from anabranch.errors import AnabranchError, TopicNotFoundError
from anabranch.model.names import TopicName

_logger = logging.getLogger(__name__)

PACE: Final = Backoff(0.05, 1.0, jitter=0.2)
AT_ONCE: Final = 32
"""How many polls may ask at the same time."""

Listener = Callable[[Drained], None]


async def _unknown(segment: TopicName, subscription: str) -> bool | None:
    raise NotImplementedError


class DrainPolls:
    """The polls of one process."""

    def __init__(self, tasks: TaskRegistry) -> None:
        self.is_drained: Callable[[TopicName, str], Awaitable[bool | None]] = _unknown
        """Asks whether a subscription has drained a sealed segment; None without the subscription."""
        self._tasks = tasks
        self._listeners: dict[TopicName, Listener] = {}
        self._polled: set[tuple[TopicName, str]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)

    def listen(self, topic: TopicName, drained: Listener) -> Callable[[], None]:
        """Report the drained segments of a topic from now on; returns the undo."""
        self._listeners[topic] = drained

        def undo() -> None:
            if self._listeners.get(topic) is drained:
                del self._listeners[topic]

        return undo

    def add(self, segment: TopicName, subscription: str) -> None:
        """Report once when the subscription has drained the segment."""
        key = segment, subscription
        if key not in self._polled:
            self._polled.add(key)
            self._tasks.spawn(self._poll(segment, subscription), f"drain of {segment}")

    async def _poll(self, segment: TopicName, subscription: str) -> None:
        topic = segment.partitioned_topic.topic
        delays_s = PACE.delays()
        try:
            while topic in self._listeners:
                await asyncio.sleep(next(delays_s))
                try:
                    async with self._slots:
                        drained = await self.is_drained(segment, subscription)
                except TopicNotFoundError:
                    drained = True
                except AnabranchError as error:
                    _logger.info("cannot find out yet whether %s is drained: %s", segment, error)
                    continue
                if drained is None:
                    return
                if drained:
                    break
        finally:
            self._polled.discard((segment, subscription))
        listener = self._listeners.get(topic)
        if listener is not None:
            listener(Drained(segment, subscription))
