"""The consumers of a cluster run and their deliveries: stream, queue and checkpoint.

A reader is a coroutine inside a client's process, which may be killed at any point. State that outlives the
process, such as a saved checkpoint, is kept here. Knows nothing of faults.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from anabranch.client.api import AsyncClient
from anabranch.client.consume.consumers.checkpoint_consumer import AsyncCheckpointConsumer
from anabranch.client.consume.consumers.queue_consumer import AsyncQueueConsumer
from anabranch.client.consume.consumers.stream_consumer import AsyncStreamConsumer
from anabranch.client.message import Message
from anabranch.errors import AuthorizationError, ConsumerBusyError, OperationTimeoutError
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.names import TopicName
from simulation.cluster.cluster import Cluster
from simulation.judges.checkers import Delivered, SendResult, Sent
from simulation.runs.reader_kinds import (
    CHECKPOINT,
    GROUP,
    KEYED,
    QUEUE,
    STREAM,
    TAKEN_BACK,
    persist,
)
from simulation.runs.reader_moods import SeekingBack, think
from simulation.runs.shape import READER, Shape
from simulation.world.process import SimProcess

TOPIC = TopicName("topic", "public", "default", "orders")


class Readers:
    """All readers of one run, by subscription."""

    def __init__(self, cluster: Cluster, shape: Shape, counts: Counter[str]) -> None:
        self.over = False
        """Whether all readers are to close."""
        self.leaving: set[SimProcess] = set()
        """Processes whose reader is to close."""
        wanted = {
            STREAM: shape.consumers,
            QUEUE: shape.queue_consumers,
            KEYED: shape.keyed_consumers,
            CHECKPOINT: shape.checkpoints,
            GROUP: shape.group_members,
        }
        self.wanted = {kind: count for kind, count in wanted.items() if count}
        """The number of readers of each kind."""
        self.kinds = list(self.wanted)
        self.missing: dict[str, dict[str, None]] = {kind: {} for kind in self.kinds}
        """Confirmed messages that have not been received yet."""
        self._received: dict[str, set[str]] = {kind: set() for kind in self.kinds}
        self.aimed: dict[str, int] = {}
        """By message: its segment in the layout at the time of sending."""
        self._cluster = cluster
        self._history = cluster.history
        self._shape = shape
        self._counts = counts
        self._seeking_back = SeekingBack(self._history, counts)
        self._saved: bytes | None = None
        self._saved_count = 0
        """The number of deliveries up to the saved checkpoint."""

    @property
    def subscriptions(self) -> list[str]:
        """The kinds with a cursor in the broker."""
        return [kind for kind in self.kinds if kind not in (CHECKPOINT, GROUP)]

    def confirmed(self, uid: str) -> None:
        """Expect a stored message in every subscription."""
        for kind, received in self._received.items():
            if uid not in received:
                self.missing[kind][uid] = None

    def excuse(self, sent: Sent) -> None:
        """Expect a message no longer, because its record is damaged; it may still arrive."""
        sent.damaged, sent.outcome = True, SendResult.UNKNOWN
        for missing in self.missing.values():
            missing.pop(sent.uid, None)

    def _goes_on(self, process: SimProcess) -> bool:
        return not self.over and process not in self.leaving

    async def read(self, kind: str, process: SimProcess, rng: random.Random) -> None:
        """Read until `over`."""
        reader = {
            STREAM: self._stream,
            QUEUE: self._queue,
            KEYED: self._keyed,
            CHECKPOINT: self._checkpoint,
            GROUP: self._group,
        }[kind]
        while self._goes_on(process):
            try:
                await reader(process, rng)
            except AuthorizationError:
                if not self._shape.revocations:
                    raise
                self._counts["reader lost its right"] += 1
                await asyncio.sleep(0.5)

    def _options(self, process: SimProcess, rng: random.Random) -> dict[str, Any]:
        return {
            "name": process.name,
            "initial_position": "earliest",
            "receiver_queue_size": self._shape.queue_size,
            "ack_receipts": self._shape.ack_receipts,
            "ack_group_time": rng.choice((0.0, 0.1)),
        }

    async def _stream(self, process: SimProcess, rng: random.Random) -> None:
        async with self._cluster.client(process, READER) as client:
            consumer: AsyncStreamConsumer[bytes] = await persist(
                lambda: client.subscribe_stream(str(TOPIC), STREAM, **self._options(process, rng))
            )
            handed: list[str] = []
            while self._goes_on(process):
                messages = await consumer.receive_many(rng.randrange(1, 30), timeout=0.5)
                handed += self._note(STREAM, messages, process.name)
                if not messages:
                    continue
                await think(consumer, rng, self._shape.stuck, self._counts)
                if await self._seeking_back.now_and_then(consumer, rng):
                    handed.clear()
                    continue
                try:
                    await consumer.acknowledge_cumulative(messages[-1])
                except (ConsumerBusyError, OperationTimeoutError):
                    # Another consumer may have got the segment; it receives the unconfirmed messages again.
                    handed.clear()
                    continue
                if self._shape.ack_receipts:
                    self._history.acknowledge(STREAM, handed)
                    handed.clear()

    async def _queue(self, process: SimProcess, rng: random.Random) -> None:
        """Acknowledge in any order, so that cursors have holes, and reject some messages."""
        async with self._cluster.client(process, READER) as client:
            consumer: AsyncQueueConsumer[bytes] = await persist(
                lambda: client.subscribe_queue(str(TOPIC), QUEUE, **self._options(process, rng))
            )
            acknowledged: list[str] = []
            while self._goes_on(process):
                messages = await consumer.receive_many(rng.randrange(1, 30), timeout=0.5)
                noted = list(zip(messages, self._note(QUEUE, messages, process.name), strict=True))
                rng.shuffle(noted)
                given_back = rng.randrange(len(noted) + 1) if rng.random() < 0.2 else 0
                for message, _ in noted[:given_back]:
                    self._counts["given back"] += 1
                    await consumer.negative_acknowledge(message, delay=rng.uniform(0, 0.3))
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.uniform(0, 0.1))
                if self._shape.forgetful:
                    del noted[given_back : given_back + len(noted) // 3]
                with suppress(OperationTimeoutError):
                    await consumer.acknowledge(message for message, _ in noted[given_back:])
                    acknowledged += (uid for _, uid in noted[given_back:])
                await self._confirm(QUEUE, consumer, acknowledged, rng)

    async def _confirm(
        self, kind: str, consumer: AsyncQueueConsumer[bytes], acknowledged: list[str], rng: random.Random
    ) -> None:
        """Confirm acknowledgements, always or now and then, and note them in the history."""
        if acknowledged and (self._shape.ack_receipts or rng.random() < 0.1):
            # Without an answer in time the acknowledgements go on, and a later call confirms them.
            with suppress(OperationTimeoutError):
                await consumer.flush_acks()
                self._history.acknowledge(kind, acknowledged)
                acknowledged.clear()

    async def _keyed(self, process: SimProcess, rng: random.Random) -> None:
        """Finish the messages of each key in order, while some keys are stuck and some messages rejected."""
        loop, acknowledged = self._cluster.loop, list[str]()
        stuck: dict[str, tuple[float, list[Message[bytes]]]] = {}
        async with self._cluster.client(process, READER) as client:
            consumer: AsyncQueueConsumer[bytes] = await persist(
                lambda: client.subscribe_queue(str(TOPIC), KEYED, order="key", **self._options(process, rng))
            )
            while self._goes_on(process):
                messages = await consumer.receive_many(rng.randrange(1, 30), timeout=0.5)
                self._note(KEYED, messages, process.name)
                finished: list[Message[bytes]] = []
                for message in messages:
                    key = message.key or ""
                    if key in stuck:
                        stuck[key][1].append(message)
                    elif rng.random() < self._shape.stuck:
                        self._counts["key stuck"] += 1
                        stuck[key] = loop.time() + rng.uniform(0.2, 5.0), [message]
                    elif rng.random() < 0.05:
                        self._counts["key paused"] += 1
                        await consumer.negative_acknowledge(message, delay=rng.uniform(0, 0.5))
                    else:
                        finished.append(message)
                for key in [key for key, (until_s, _) in stuck.items() if until_s <= loop.time()]:
                    finished += stuck.pop(key)[1]
                await think(consumer, rng, self._shape.stuck, self._counts)
                with suppress(OperationTimeoutError):
                    await consumer.acknowledge(finished)
                    acknowledged += (bytes(message.data).decode() for message in finished)
                await self._confirm(KEYED, consumer, acknowledged, rng)

    async def _open_checkpoint(
        self, client: AsyncClient, start: Checkpoint, **more: Any
    ) -> AsyncCheckpointConsumer[bytes]:
        options: dict[str, Any] = {
            "receiver_queue_size": self._shape.queue_size,
            # A damaged record is a gap, which the reader would report with an error.
            "fail_on_data_loss": not self._shape.disk.damaged,
        }
        opening = partial(client.create_checkpoint_consumer, str(TOPIC), start=start, **options, **more)
        return await persist(opening)

    async def _checkpoint(self, process: SimProcess, rng: random.Random) -> None:
        """Read from the last checkpoint on and save one at random points; sometimes close and restore."""
        closings = rng.randrange(4)
        async with self._cluster.client(process, READER) as client:
            while self._goes_on(process):
                consumer = await self._open_checkpoint(client, self._restore())
                while self._goes_on(process) and not (closings and rng.random() < 0.05):
                    messages = await consumer.receive_many(rng.randrange(1, 30), timeout=0.5)
                    self._note(CHECKPOINT, messages, process.name)
                    if rng.random() < 0.3:
                        await asyncio.sleep(rng.uniform(0, 0.1))
                    if rng.random() < 0.2:
                        self._save(consumer.checkpoint())
                closings -= 1
                await consumer.close()
                if rng.random() < 0.5:
                    self._save(consumer.checkpoint())

    async def _group(self, process: SimProcess, rng: random.Random) -> None:
        """Share the topic with other members and commit; a group that was empty starts over."""
        async with self._cluster.client(process, READER) as client:
            earliest = Checkpoint.earliest()
            consumer = await self._open_checkpoint(client, earliest, group=GROUP, name=process.name)
            while self._goes_on(process):
                messages = await consumer.receive_many(rng.randrange(1, 30), timeout=0.5)
                self._note(GROUP, messages, process.name)
                await think(consumer, rng, self._shape.stuck, self._counts)
                if rng.random() < 0.3:
                    continue
                try:
                    await consumer.commit()
                    self._counts["group committed"] += 1
                except OperationTimeoutError:
                    self._counts["commit in doubt"] += 1
                except ConsumerBusyError:
                    # Another member got a bucket; it receives the uncommitted messages, and `read` goes on.
                    self._counts["commit refused"] += 1
                    return

    def _save(self, checkpoint: Checkpoint) -> None:
        self._counts["checkpoint saved"] += 1
        self._saved = checkpoint.to_bytes()
        self._saved_count = len(self._history.received.get(CHECKPOINT, ()))

    def _restore(self) -> Checkpoint:
        """Return the last checkpoint; deliveries after it no longer count, because they come again."""
        for message in self._history.take_back(CHECKPOINT, self._saved_count, TAKEN_BACK):
            self._counts["delivery taken back"] += 1
            self._received[CHECKPOINT].discard(message.uid)
            if self._history.sent[message.uid].outcome is SendResult.OK:
                self.missing[CHECKPOINT][message.uid] = None
        if self._saved is None:
            return Checkpoint.earliest()
        self._counts["checkpoint restored"] += 1
        return Checkpoint.from_bytes(self._saved)

    def _note(self, kind: str, messages: Sequence[Message[bytes]], consumer: str) -> list[str]:
        """Add deliveries to the history; return their uids."""
        received, missing = self._received[kind], self.missing[kind]
        uids = []
        for message in messages:
            uid = bytes(message.data).decode()
            id_ = message.id
            place = (id_.segment, id_.ledger, id_.entry, id_.batch_index)
            self._history.receive(kind, Delivered(uid, message.key or "", place, consumer))
            if uid in received:
                self._counts["delivered again"] += 1
            elif self.aimed.get(uid, id_.segment) != id_.segment:
                self._counts["message crossed a seal"] += 1
            received.add(uid)
            missing.pop(uid, None)
            uids.append(uid)
        return uids
