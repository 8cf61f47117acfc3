"""The time from a message's sending until an application has it, with producers and consumers in one process.

Both ends read the same clock, so the clocks of machines do not matter. Messages of other producers on the
topic are acknowledged and not counted.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

from anabranch import AsyncClient
from anabranch.bench.consume import CHUNK, POLL_S, BenchConsumers, BenchReading
from anabranch.bench.publish import BenchSending, publish_with
from anabranch.bench.run import BenchRun, now, together
from anabranch.bench.workload import MARK_BYTES, Workload, due_of

LOST_AFTER_S = 10.0
"""A message counts as lost if none has arrived for so long after the last one was stored."""


@dataclasses.dataclass(frozen=True, slots=True)
class RoundTrip:
    """Both ends of a run that measures latency."""

    sending: BenchSending
    reading: BenchReading
    workload: Workload


class LatencyRun:
    """Producers and consumers of one topic."""

    def __init__(self, run: BenchRun, trip: RoundTrip) -> None:
        self._run = run
        self._trip = trip
        self._mark = secrets.token_bytes(MARK_BYTES)
        self._published = False
        self._progress_at = now()

    async def measure(self, client: AsyncClient, topic: str) -> None:
        """Send and receive until the run has ended and all its messages have arrived."""
        await self._run.note_topic(client, topic)
        consumers = BenchConsumers(self._run, client, topic, self._trip.reading)
        try:
            # The subscription begins behind the last message, so it must exist before the first of this run.
            await consumers.open()
            producers = await self._trip.sending.open(client, topic)
            self._run.received.start(now())
            readers = (self._read(consumers, consumer) for consumer in consumers.consumers)
            await together(self._publish(producers), *readers)
        finally:
            await consumers.close()
        self._run.left.append(f"the messages in {topic}, until its retention removes them")

    async def _publish(self, producers: list[Any]) -> None:
        workload = dataclasses.replace(self._trip.workload, mark=self._mark)
        await publish_with(self._run, producers, self._trip.sending, workload)
        self._published, self._progress_at = True, now()

    async def _read(self, consumers: BenchConsumers, consumer: Any) -> None:
        while not self._finished():
            messages = await consumer.receive_many(CHUNK, timeout=POLL_S)
            moment = now()
            for message in messages:
                due = due_of(message.data, self._mark)
                if due is not None:
                    self._run.received.add(moment, 1, message.size, moment - due)
                    self._progress_at = moment
            if messages:
                await consumers.acknowledge(consumer, messages)

    def _finished(self) -> bool:
        if not self._published:
            return False
        arrived = self._run.received.messages >= self._run.stored.messages
        return arrived or now() - self._progress_at > LOST_AFTER_S
