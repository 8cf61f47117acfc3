"""Segments wherever they are: in a store of this broker, or at the broker that owns theirs.

Every verb of the port goes where the place says; none is written out here. Must not know what they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from anabranch.aio import Backoff, TaskRegistry
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.local_segments import LocalSegments
from anabranch.broker.cluster.peers import Peers
from anabranch.broker.cluster.remote_calls import Arguments, Port, Verb
from anabranch.controller.decide.places import Place
from anabranch.controller.ports.leader import TopicLeader
from anabranch.controller.ports.segments import Drained, Segments
from anabranch.errors import AnabranchError, LocalProtocolError, ServiceNotReadyError, TopicNotFoundError
from anabranch.model.names import TopicName

SEGMENTS: Final = Port(Segments)
TARGET: Final = "segments"

RETRIES: Final = Backoff(0.1, 5.0, jitter=0.0)


class PlaceRouter:
    """Carries each call of a port whose verbs name a place to where that is."""

    def __init__(
        self, target: str, local: Any, owns: Callable[[int], bool], directory: Directory, peers: Peers
    ) -> None:
        self._target = target
        self._local = local
        self._owns = owns
        self._directory = directory
        self._peers = peers

    async def call(self, verb: Verb, arguments: Arguments) -> Any:
        place: Place = arguments["place"]
        if self._owns(place.store):
            return await getattr(self._local, verb.name)(**arguments)
        owner = self._directory.owner_of(place.store)
        if owner is None:
            raise ServiceNotReadyError(f"{place.name} is in store {place.store}, which nobody serves now")
        result, _ = await self._peers.call(owner.url, self._target, verb, arguments)
        return result

    def tell(self, verb: Verb, arguments: Arguments) -> None:
        raise LocalProtocolError(f"{self._target} are asked, not told: {verb.name}")


def route_segments(
    local: LocalSegments, owns: Callable[[int], bool], directory: Directory, peers: Peers
) -> Segments:
    """The segments port over all stores; what drains anywhere is heard where the topic is led."""
    routed = SEGMENTS.proxy(PlaceRouter(TARGET, local, owns, directory, peers))
    routed.on_drained = local.on_drained
    return cast(Segments, routed)


class DrainMessenger:
    """Tells leaders elsewhere what drained here, until they took it.

    A leader that takes a topic over asks every segment by itself, so what is lost with this process is made
    good by the next owner's telling and the next leader's asking.
    """

    def __init__(self, tasks: TaskRegistry, leader: Callable[[TopicName], Awaitable[TopicLeader]]) -> None:
        self._tasks = tasks
        self._leader = leader
        self._newest: dict[tuple[TopicName, str], Drained] = {}

    def take(self, event: Drained) -> None:
        """Pass an event on; of several about the same segment and subscription the newest says all."""
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
