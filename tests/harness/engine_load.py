"""A load on one scalable topic, with the proof that nothing of it was lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence

from anabranch import (
    AsyncAdminClient,
    AsyncClient,
    AsyncProducer,
    AsyncQueueConsumer,
    AsyncStreamConsumer,
    Checkpoint,
)
from anabranch.errors import AnabranchError
from tests.harness.engine_end import assert_finished

KEYS = 100
SILENCE_S = 60.0
"""A consumer that gets nothing for so long, although messages are missing, has failed."""
QUIET_S = 2.0
"""A message that was stored twice is read again within this time."""
GAP_S = 0.02
"""Between each hundred sends."""
LATER_GAP_S = 0.1
"""The same, for the sends that go on until the last fault is over."""

Fault = Callable[[], Awaitable[None]]


class EngineLoad:
    """Sends numbers by key, reads them with every kind of consumer, and changes the layout meanwhile."""

    def __init__(self, client: AsyncClient, admin_url: Callable[[], str], topic: str, seed: int) -> None:
        """`admin_url` gives the admin API of a process that lives."""
        self._client = client
        self._admin_url = admin_url
        self._topic = topic
        self._rng = random.Random(seed)
        self._streamed: list[tuple[str, int]] = []
        self._queued: set[int] = set()
        self._changing = asyncio.Event()
        self._struck = asyncio.Event()
        self._flying = 0
        self.streams = 2
        """Stream consumers of one subscription."""
        self.segments_max = 4
        """With more active segments than this, two of them are merged."""
        self.ordered = True
        """Whether stream consumers get each key in order."""
        self.changes_max: int | None = None
        """After so many changes the layout stays as it is."""
        self.pulsar_admin_url: str | None = None
        """The admin API of the Pulsar below, which must have no stray topic at the end."""
        self.sent = 0
        self.in_flight_max = 0
        """The most sends that were under way at one moment."""
        self.changes = 0
        """Layout changes that were done; others were interrupted, and their leader finished or undid them."""
        self.interrupted = 0
        self.faults = 0
        """Each began while a layout change was under way."""

    async def run(self, count: int, in_flight: int, faults: Sequence[Fault] = ()) -> None:
        """Send `count` numbers or more while the layout changes and each fault happens once, then judge."""
        client, topic = self._client, self._topic
        async with AsyncAdminClient(self._admin_url()) as admin:
            await admin.create_topic(topic, segments=2)
        streams = [
            await client.subscribe_stream(topic, "stream", initial_position="earliest")
            for _ in range(self.streams)
        ]
        queue = await client.subscribe_queue(topic, "queue", initial_position="earliest")
        producer = await client.create_producer(topic)
        reading = [asyncio.ensure_future(self._stream(consumer)) for consumer in streams]
        reading.append(asyncio.ensure_future(self._take(queue)))
        troubling = asyncio.ensure_future(self._trouble(faults))
        sending = asyncio.ensure_future(self._send(producer, count, in_flight, troubling))
        changing = asyncio.ensure_future(self._change_layouts(sending))
        try:
            await asyncio.gather(troubling, sending, changing)
            await self._arrived(reading)
        finally:
            for task in (troubling, sending, changing, *reading):
                task.cancel()
        self._judge()
        for consumer in (*streams, queue):
            await consumer.close()
        await assert_finished(self._admin_url, self.pulsar_admin_url, topic)
        times = Counter(await self._stored())
        missing = [number for number in range(self.sent) if not times[number]]
        doubled = [number for number, count in times.items() if count > 1]
        assert (missing[:20], doubled[:20]) == ([], []), "missing and stored twice"

    async def _send(
        self, producer: AsyncProducer[bytes], count: int, in_flight: int, troubling: asyncio.Future[None]
    ) -> None:
        """Send numbers until all faults are over, and `count` at least; a fault is met by a full window."""
        window = asyncio.Semaphore(in_flight)
        async with asyncio.TaskGroup() as sends:
            while self.sent < count or not troubling.done():
                at_once = in_flight if self._struck.is_set() else 100
                self._struck.clear()
                for _ in range(at_once):
                    await window.acquire()
                    self._flying += 1
                    self.in_flight_max = max(self.in_flight_max, self._flying)
                    sends.create_task(self._send_one(producer, self.sent, window))
                    self.sent += 1
                await asyncio.sleep(GAP_S if self.sent < count else LATER_GAP_S)

    async def _send_one(self, producer: AsyncProducer[bytes], number: int, window: asyncio.Semaphore) -> None:
        try:
            await producer.send(b"%d" % number, key=f"key-{number % KEYS}")
        finally:
            self._flying -= 1
            window.release()

    async def _trouble(self, faults: Sequence[Fault]) -> None:
        """Let each fault happen while a layout change is under way."""
        for fault in faults:
            await asyncio.sleep(self._rng.uniform(0.1, 0.6))
            await self._amid_a_change()
            self._struck.set()
            await fault()
            self.faults += 1

    async def _amid_a_change(self) -> None:
        """Return at any step of a change; the steps take some hundredths of a second each."""
        while True:
            await self._changing.wait()
            await asyncio.sleep(self._rng.uniform(0.0, 0.1))
            if self._changing.is_set():
                return

    async def _change_layouts(self, sending: asyncio.Future[None]) -> None:
        """Change the layout until a change is done that began after the last fault."""
        settled = False
        while not settled and self.changes != self.changes_max:
            await asyncio.sleep(self._rng.uniform(0.1, 0.6))
            self._changing.set()
            begun_after_faults = sending.done()
            try:
                async with AsyncAdminClient(self._admin_url()) as admin:
                    await self._split_or_merge(admin)
                self.changes += 1
                settled = begun_after_faults
            except AnabranchError:
                # A process died during the call; the next leader finishes the change or undoes it.
                self.interrupted += 1
            finally:
                self._changing.clear()

    async def _split_or_merge(self, admin: AsyncAdminClient) -> None:
        record = await admin.topic_metadata(self._topic)
        active = sorted(
            (segment.hash_range.start, segment.segment_id)
            for segment in record.segments.values()
            if segment.state == "ACTIVE"
        )
        if len(active) > self.segments_max:
            at = self._rng.randrange(len(active) - 1)
            await admin.merge(self._topic, [active[at][1], active[at + 1][1]])
        else:
            await admin.split(self._topic, self._rng.choice(active)[1])

    async def _stream(self, consumer: AsyncStreamConsumer[bytes]) -> None:
        while True:
            message = await consumer.receive()
            self._streamed.append((message.key or "", int(message.value or b"")))
            await consumer.acknowledge_cumulative(message)

    async def _take(self, consumer: AsyncQueueConsumer[bytes]) -> None:
        while True:
            message = await consumer.receive()
            self._queued.add(int(message.value or b""))
            await consumer.acknowledge(message)

    async def _arrived(self, reading: Sequence[asyncio.Future[None]]) -> None:
        """Return when both subscriptions have all numbers; fail after a long silence."""
        seen, loop = -1, asyncio.get_running_loop()
        silent_since = loop.time()
        while (now := len({number for _, number in self._streamed}) + len(self._queued)) < 2 * self.sent:
            failed = [task.exception() for task in reading if task.done()]
            assert not failed, failed
            if now != seen:
                seen, silent_since = now, loop.time()
            assert loop.time() - silent_since < SILENCE_S, f"{2 * self.sent - now} messages never came"
            await asyncio.sleep(0.2)

    def _judge(self) -> None:
        """First deliveries of each key are in order; later ones repeat what was delivered before."""
        assert {number for _, number in self._streamed} == set(range(self.sent))
        assert self._queued == set(range(self.sent))
        if not self.ordered:
            return
        first: dict[str, list[int]] = defaultdict(list)
        known: set[int] = set()
        for key, number in self._streamed:
            if number not in known:
                known.add(number)
                first[key].append(number)
        assert [key for key, numbers in first.items() if numbers != sorted(numbers)] == []

    async def _stored(self) -> list[int]:
        """All stored numbers, from the first message to the last; those of each key are in order."""
        reader = await self._client.create_checkpoint_consumer(self._topic, start=Checkpoint.earliest())
        found: dict[str, list[int]] = defaultdict(list)
        count = 0
        while messages := await reader.receive_many(
            1000, timeout=SILENCE_S if count < self.sent else QUIET_S
        ):
            count += len(messages)
            for message in messages:
                found[message.key or ""].append(int(message.value or b""))
        await reader.close()
        assert [key for key, numbers in found.items() if numbers != sorted(numbers)] == []
        return sorted(number for numbers in found.values() for number in numbers)
