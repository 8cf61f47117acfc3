"""The client processes of a cluster run: senders, and consumers that die, pause, leave and are replaced.

Must not know which faults a run plans, nor judge what clients receive.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from itertools import count

from anabranch.client.produce.futures import SendFuture
from anabranch.client.produce.producer import AsyncProducer
from anabranch.errors import AnabranchError, AuthorizationError
from anabranch.model.hashing import key_hash
from anabranch.model.ids import MessageId
from anabranch.model.routing import Router
from simulation.cluster.cluster import Cluster
from simulation.judges.checkers import SendResult, Sent
from simulation.runs.reader_kinds import CHECKPOINT, persist
from simulation.runs.readers import TOPIC, Readers
from simulation.runs.shape import SENDER, Shape
from simulation.world.process import SimProcess

LEAVE_S = 60.0
"""A consumer that closes must have closed within this time."""


class Clients:
    """All client processes of one run."""

    def __init__(self, cluster: Cluster, readers: Readers, rng: random.Random) -> None:
        self.cluster = cluster
        self.readers = readers
        self.rng = rng
        self.counts: Counter[str] = cluster.counts
        self.processes: list[SimProcess] = []
        self.heirs = 0
        """Consumers that are about to replace one that left or was killed."""
        self._loop = cluster.loop
        self._living: dict[str, tuple[str, SimProcess]] = {}
        """Consumers by name: their kind and their process."""
        self._reading: dict[str, asyncio.Task[None]] = {}

    def process(self, name: str) -> SimProcess:
        process = SimProcess(self._loop, name)
        self.processes.append(process)
        latency_s = self.rng.choice(((0.0001, 0.001), (0.001, 0.02), (0.0, 0.1)))
        for link in self.cluster.links(process):
            link.latency_s = latency_s
            link.pieces = self.rng.choice((0.0, 0.2))
        return process

    def start_consumer(self, kind: str, name: str) -> None:
        process = self.process(name)
        self._living[name] = kind, process
        rng = self._loop.random(f"{name} {len(self.processes)}")
        self._reading[name] = process.spawn(self.readers.read(kind, process, rng))

    def pause_consumer(self) -> None:
        if self._living:
            _, process = self._living[self.rng.choice(sorted(self._living))]
            self.counts["consumer paused"] += 1
            process.pause()
            self._loop.call_later(self.rng.uniform(0.1, 8.0), process.resume)

    def kill_consumer(self) -> None:
        if not self._living:
            return
        name = self.rng.choice(sorted(self._living))
        kind, process = self._living.pop(name)
        process.kill(machine=self.rng.random() < 0.3)
        self.counts["consumer killed"] += 1
        heir = name if self.rng.random() < 0.5 else f"{name}+"
        self.heirs += 1
        self._loop.call_later(self.rng.uniform(0.01, 2.0), self._start_heir, kind, heir)

    def let_consumer_leave(self) -> None:
        if self._living:
            name = self.rng.choice(sorted(self._living))
            kind, process = self._living.pop(name)
            self.heirs += 1
            self._loop.create_task(self._leave(name, kind, process))

    async def _leave(self, name: str, kind: str, process: SimProcess) -> None:
        """Close a consumer and start its heir, with the same name or another, maybe before it has closed."""
        self.readers.leaving.add(process)
        leaving = self._reading[name]
        if kind == CHECKPOINT or self.rng.random() < 0.7:
            await asyncio.wait((leaving,), timeout=LEAVE_S)
        else:
            name = f"{name}!"
        await asyncio.sleep(self.rng.uniform(0.0, 0.5))
        self.counts["consumer left"] += leaving.done()
        self._start_heir(kind, name)

    def _start_heir(self, kind: str, name: str) -> None:
        self.heirs -= 1
        self.start_consumer(kind, name)

    async def end_consumers(self, found: list[str]) -> None:
        """Close all consumers, and report those that cannot close; no delivery is under way afterwards."""
        self.readers.over = True
        for name in self._living:
            try:
                await asyncio.wait_for(asyncio.shield(self._reading[name]), LEAVE_S)
            except TimeoutError:
                found.append(f"{name} could not close within {LEAVE_S:g} s")
        self.readers.over = False
        self._living.clear()
        for subscription in self.readers.subscriptions:
            self.cluster.history.note_quiet(subscription)


class Senders:
    """All producers of one run; an error that a producer must not see goes to `found`."""

    def __init__(self, clients: Clients, shape: Shape, found: list[str]) -> None:
        self.shape = shape
        self._clients = clients
        self._history = clients.cluster.history
        self._found = found
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = self._clients.cluster.loop
        for number in range(self.shape.producers):
            self._tasks.append(loop.create_task(self._produce(f"producer-{number}")))

    @property
    def waiting(self) -> int:
        """The number of producers that have not sent everything; raises the error of one that failed."""
        for task in self._tasks:
            if task.done():
                task.result()
        return sum(not task.done() for task in self._tasks)

    async def _produce(self, name: str) -> None:
        """Send all messages over several lives; a later life repeats some confirmed messages."""
        sent: list[Sent] = []
        for life in count():
            process = self._clients.process(name if not life else f"{name}.{life}")
            doubtful = next((n for n, s in enumerate(sent) if s.outcome is not SendResult.OK), len(sent))
            first = self._clients.rng.randrange(max(doubtful - 10, 0), doubtful + 1)
            sending = process.spawn(self._send(process, name, sent, first))
            dying = life < self.shape.sender_deaths
            await asyncio.wait(
                [sending], timeout=self._clients.rng.uniform(0.0, self.shape.busy_s) if dying else None
            )
            if sending.done():
                if self._kept_right(sending):
                    return
                await asyncio.sleep(0.5)
                continue
            process.kill(machine=self._clients.rng.random() < 0.3)
            self._clients.counts["sender killed"] += 1

    def _kept_right(self, sending: asyncio.Task[None]) -> bool:
        """Whether a life ended well; False if its role lost its right to produce."""
        kept = True
        try:
            sending.result()
        except* AuthorizationError:
            if not self.shape.revocations:
                raise
            self._clients.counts["sender lost its right"] += 1
            kept = False
        return kept

    async def _send(self, process: SimProcess, name: str, sent: list[Sent], first: int) -> None:
        """Send from a message number on; a sender with several lives sets its own sequence ids."""
        shape, rng = self.shape, self._clients.cluster.loop.random(process.name)
        async with self._clients.cluster.client(process, SENDER) as client:
            producer: AsyncProducer[bytes] = await persist(
                lambda: client.create_producer(str(TOPIC), name=name, send_timeout=0, batching=shape.batching)
            )
            room = asyncio.Semaphore(shape.in_flight_max)
            futures: list[SendFuture] = []
            async with asyncio.TaskGroup() as outcomes:
                for number in range(first, shape.messages):
                    await room.acquire()
                    # A later message with a higher sequence id would make the repetition a duplicate.
                    if any(future.done() and future.exception() for future in futures):
                        break
                    if number == len(sent):
                        sent.append(self._history.send(name, f"key-{rng.randrange(shape.keys)}"))
                        self._aim(sent[number])
                    message = sent[number]
                    future = await producer.enqueue(
                        message.uid.encode(),
                        key=message.key,
                        sequence_id=number if shape.sender_deaths or shape.revocations else None,
                    )
                    futures.append(future)
                    outcomes.create_task(self._outcome(message, future, room))
                    if shape.pause_s:
                        await asyncio.sleep(rng.uniform(0, shape.pause_s))
                await producer.flush()

    def _aim(self, sent: Sent) -> None:
        layouts = self._history.layouts
        if layouts:
            self._clients.readers.aimed[sent.uid] = Router(layouts[-1]).segment_for(key_hash(sent.key)).id

    async def _outcome(self, sent: Sent, future: Awaitable[MessageId], room: asyncio.Semaphore) -> None:
        try:
            id_ = await future
        except AnabranchError as error:
            if isinstance(error, AuthorizationError) and self.shape.revocations:
                raise
            self._found.append(f"the sender of {sent.uid} saw {type(error).__name__}: {error}")
            return
        finally:
            room.release()
        if sent.damaged:
            return
        sent.outcome = SendResult.OK
        if id_.ledger >= 0:
            sent.place = (id_.segment, id_.ledger, id_.entry, id_.batch_index)
        self._clients.readers.confirmed(sent.uid)
