"""The adapters of the segments port, each with a way to publish entries."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import Any, Protocol

from anabranch import AsyncClient
from anabranch.aio import TaskRegistry
from anabranch.control.drain_polls import DrainPolls
from anabranch.control.pulsar_admin import PulsarAdmin
from anabranch.control.pulsar_segments import PulsarSegments
from anabranch.controller.ports.segments import Segments
from anabranch.model.log_names.pulsar_names import pulsar_topic
from anabranch.model.names import Place, TopicName
from anabranch.model.ranges import FULL
from simulation.cluster.pulsar import SimPulsar
from simulation.world.loop import SimLoop
from tests.harness.cluster import Brokers
from tests.harness.pulsar import EngineAddresses

APART_S = 0.05
"""Seconds between two entries, so that their times differ."""

_topics = count()


def new_place() -> Place:
    """A segment of a topic that no other test uses; a real cluster keeps the topics of earlier tests."""
    local = f"orders-{time.time_ns()}-{next(_topics)}"
    return Place(TopicName("topic", "public", "default", local).segment_name(FULL, 0), 0)


class SegmentsHost(Protocol):
    """An adapter of the port, with the means to prepare its segments."""

    segments: Segments

    async def start(self) -> None: ...

    async def publish(self, place: Place, count: int) -> list[int]:
        """Store entries; returns their times in milliseconds."""

    async def stop(self) -> None: ...


class LocalHost:
    """The logs of one broker."""

    segments: Segments

    def __init__(self, loop: SimLoop) -> None:
        self._brokers = Brokers(loop)

    async def start(self) -> None:
        await self._brokers.start_all()
        self.segments = self._brokers[0].segments

    async def publish(self, place: Place, count: int) -> list[int]:
        log = self._brokers[0].logs.require(place.name).log
        times_ms = []
        for _ in range(count):
            await asyncio.sleep(APART_S)
            times_ms.append(self._brokers.clock.wall_ms())
            stored: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            log.append(b"entry", 1, times_ms[-1], lambda entry, error: stored.set_result(error))  # noqa: B023
            assert await stored is None
        return times_ms

    async def stop(self) -> None:
        await self._brokers.stop_all()


class SimulatedHost:
    """The topics of a Pulsar cluster in memory."""

    def __init__(self) -> None:
        self._pulsar = SimPulsar()
        self._tasks = TaskRegistry()
        self.segments: Segments = PulsarSegments(self._pulsar, DrainPolls(self._tasks))

    async def start(self) -> None:
        """Nothing has to be started."""

    async def publish(self, place: Place, count: int) -> list[int]:
        stored = self._pulsar.found[pulsar_topic(place.name)].times_ms
        stored += range(len(stored), len(stored) + count)
        return stored[-count:]

    async def stop(self) -> None:
        await self._tasks.stop()


class PulsarHost:
    """The topics of a real Pulsar."""

    def __init__(self, engine: EngineAddresses) -> None:
        self._url = engine.url
        self._tasks = TaskRegistry()
        self._admin = PulsarAdmin([engine.http_url])
        self.segments: Segments = PulsarSegments(self._admin, DrainPolls(self._tasks))

    async def start(self) -> None:
        """The fixture has started Pulsar."""

    async def publish(self, place: Place, count: int) -> list[int]:
        times_ms = []
        async with AsyncClient(self._url) as client:
            producer = await client.create_producer(str(pulsar_topic(place.name)))
            for _ in range(count):
                await asyncio.sleep(APART_S)
                times_ms.append(time.time_ns() // 1_000_000)
                await producer.send(b"entry")
            await producer.close()
        return times_ms

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._admin.close()
