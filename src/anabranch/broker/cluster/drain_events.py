"""Carries the news that a sealed segment is drained from the segment's owner to the leader of its topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from anabranch.aio import Backoff, TaskRegistry
from anabranch.controller.ports.leader import TopicLeader
from anabranch.controller.ports.segments import Drained
from anabranch.errors import AnabranchError, TopicNotFoundError
from anabranch.model.drains import Ranges
from anabranch.model.names import TopicName

RETRIES: Final = Backoff(0.1, 5.0, jitter=0.0)

DrainListener = Callable[[Drained], None]


class DrainEvents:
    """Passes each event to the listeners of its topic, or to `otherwise` if it has none."""

    def __init__(self) -> None:
        self._listeners: dict[TopicName, list[DrainListener]] = {}
        self.otherwise: DrainListener = lambda event: None
        """Receives the events of topics that other brokers lead, and that have no listener here."""

    def listen(self, topic: TopicName, listener: DrainListener) -> Callable[[], None]:
        """Call `listener` with each event of a topic; returns the undo."""
        listeners = self._listeners.setdefault(topic, [])
        listeners.append(listener)

        def undo() -> None:
            if listener in listeners:
                listeners.remove(listener)
            if not listeners and self._listeners.get(topic) is listeners:
                del self._listeners[topic]

        return undo

    def report(self, log: TopicName, subscription: str, ranges: Ranges) -> None:
        """Report that a subscription has acknowledged a sealed log, or these bucket hashes of it."""
        topic = log.partitioned_topic.topic
        for listener in tuple(self._listeners.get(topic, [self.otherwise])):
            listener(Drained(log, subscription, ranges))


class DrainMessenger:
    """Sends events to leaders at other brokers until they accept them.

    An event that is lost with this process is reported again by the next owner of the segment.
    """

    def __init__(self, tasks: TaskRegistry, leader: Callable[[TopicName], Awaitable[TopicLeader]]) -> None:
        self._tasks = tasks
        self._leader = leader
        self._newest: dict[tuple[TopicName, str], Drained] = {}

    def send(self, event: Drained) -> None:
        """Send an event; the newest event about a segment and subscription replaces the older ones."""
        key = (event.segment, event.subscription)
        known = key in self._newest
        self._newest[key] = event
        if not known:
            self._tasks.spawn(self._deliver(key))

    async def _deliver(self, key: tuple[TopicName, str]) -> None:
        delays_s = RETRIES.delays()
        try:
            while True:
                event = self._newest[key]
                try:
                    topic = event.segment.partitioned_topic.topic
                    await (await self._leader(topic)).drained(event)
                except TopicNotFoundError:
                    return
                except AnabranchError:
                    await asyncio.sleep(next(delays_s))
                else:
                    if self._newest[key] is event:
                        return
        finally:
            del self._newest[key]
