"""Publish as fast as the broker stores messages, or at a steady rate, and time each until it is stored."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from anabranch import AsyncClient, AsyncProducer, Batching
from anabranch.bench.run import BenchRun, now, together
from anabranch.bench.workload import MessageSource, SendPace, Workload
from anabranch.client.options import CompressionName

CHUNK = 100
"""Messages that are drawn at a time."""
FLUSH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class BenchSending:
    """How messages are sent."""

    producers: int
    rate: float | None
    """Messages per second of all producers together; None is as fast as possible."""
    in_flight: int
    """The most messages of one producer that were sent and are not stored."""
    bulk: int
    """Messages that a call hands over; more than 1 costs less for each and times them as one."""
    batching: Batching | bool
    compression: CompressionName | None

    async def open(self, client: AsyncClient, topic: str) -> list[AsyncProducer[bytes]]:
        return [
            await client.create_producer(topic, batching=self.batching, compression=self.compression)
            for _ in range(self.producers)
        ]


class InFlight:
    """Counts the messages of a producer that are not stored, and waits while there are too many.

    Without this limit a producer that has no rate fills its memory first, and every latency is the time that
    the broker needs for a full memory.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._waiting: asyncio.Future[None] | None = None

    async def take(self, count: int) -> None:
        """Wait until so many more messages may be sent; a group larger than the limit goes alone."""
        while self._count and self._count + count > self._most:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self._count += count

    def give(self, count: int) -> None:
        self._count -= count
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class PublishWorker:
    """One producer of a run."""

    def __init__(
        self, run: BenchRun, producer: AsyncProducer[bytes], source: MessageSource, sending: BenchSending
    ) -> None:
        self._run = run
        self._producer = producer
        self._source = source
        self._in_flight = InFlight(sending.in_flight)
        self._bulk = sending.bulk
        self._rate = None if sending.rate is None else sending.rate / sending.producers

    async def publish(self) -> None:
        """Send messages until the run has ended, and wait until all are stored or have failed."""
        pace = None if self._rate is None else SendPace(self._rate, now())
        most = max(CHUNK, self._bulk)
        while room := self._run.room(most):
            if pace is not None:
                room = min(room, pace.due(now()))
            if pace is not None and not room:
                await self._run.pause(pace.wait_s(now()))
                continue
            self._run.move(room)
            values, keys = self._source.values(room), self._source.keys(room)
            for first in range(0, room, self._bulk):
                some = slice(first, first + self._bulk)
                await self._send(values[some], keys[some], pace)
        # A failed message is counted by its callback, so the error of the flush says nothing new.
        await asyncio.gather(self._producer.flush(FLUSH_TIMEOUT_S), return_exceptions=True)

    async def _send(self, values: list[bytes], keys: list[str | None], pace: SendPace | None) -> None:
        count = len(values)
        since = now() if pace is None else pace.take(count)
        await self._in_flight.take(count)
        stored: Any
        if self._bulk > 1:
            stored = await self._producer.enqueue_many(values, keys)
        else:
            stored = await self._producer.enqueue(self._source.marked(values[0], since), key=keys[0])
        stored.add_done_callback(partial(self._note, since, count, sum(map(len, values))))

    def _note(self, since: float, count: int, size: int, stored: Any) -> None:
        self._in_flight.give(count)
        error = stored.exception()
        if error is None:
            moment = now()
            self._run.stored.add(moment, count, size, moment - since)
        else:
            self._run.stored.fail(error, count)


async def publish(
    run: BenchRun, client: AsyncClient, topic: str, sending: BenchSending, workload: Workload
) -> None:
    """Publish to a topic until the run has ended."""
    await run.note_topic(client, topic)
    producers = await sending.open(client, topic)
    await publish_with(run, producers, sending, workload)
    run.left.append(f"the messages in {topic}, until its retention removes them")


async def publish_with(
    run: BenchRun, producers: list[AsyncProducer[bytes]], sending: BenchSending, workload: Workload
) -> None:
    """Publish with open producers until the run has ended."""
    sources = [MessageSource(workload, random.Random()) for _ in producers]
    run.start()
    run.stored.start(now())
    await together(
        *(
            PublishWorker(run, producer, source, sending).publish()
            for producer, source in zip(producers, sources, strict=True)
        )
    )
