"""The producers of a cluster run: they send numbered messages, die, and repeat messages in their next life.

Must not know which faults a run plans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from anabranch.client.produce.producer import AsyncProducer
from anabranch.errors import AnabranchError
from anabranch.model.hashing import key_hash
from anabranch.model.ids import MessageId
from anabranch.model.routing import Router
from anabranch.testing.judges.checkers import SendResult, Sent
from anabranch.testing.simprocess import SimProcess
from anabranch.testing.simulation.clients import Clients
from anabranch.testing.simulation.readers import TOPIC, persist
from anabranch.testing.simulation.shape import Shape


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
        for life in range(self.shape.sender_deaths + 1):
            process = self._clients.process(name if not life else f"{name}.{life}")
            doubtful = next((n for n, s in enumerate(sent) if s.outcome is not SendResult.OK), len(sent))
            first = self._clients.rng.randrange(max(doubtful - 10, 0), doubtful + 1)
            sending = process.spawn(self._send(process, name, sent, first))
            dying = life < self.shape.sender_deaths
            await asyncio.wait(
                [sending], timeout=self._clients.rng.uniform(0.0, self.shape.busy_s) if dying else None
            )
            if sending.done():
                sending.result()
                return
            process.kill(machine=self._clients.rng.random() < 0.3)
            self._clients.counts["sender killed"] += 1

    async def _send(self, process: SimProcess, name: str, sent: list[Sent], first: int) -> None:
        """Send from a message number on; a sender with several lives sets its own sequence ids."""
        shape, rng = self.shape, self._clients.cluster.loop.random(process.name)
        async with self._clients.cluster.client(process) as client:
            producer: AsyncProducer[bytes] = await persist(
                lambda: client.create_producer(str(TOPIC), name=name, send_timeout=0, batching=shape.batching)
            )
            room = asyncio.Semaphore(shape.in_flight_max)
            async with asyncio.TaskGroup() as outcomes:
                for number in range(first, shape.messages):
                    await room.acquire()
                    if number == len(sent):
                        sent.append(self._history.send(name, f"key-{rng.randrange(shape.keys)}"))
                        self._aim(sent[number])
                    message = sent[number]
                    future = await producer.enqueue(
                        message.uid.encode(),
                        key=message.key,
                        sequence_id=number if shape.sender_deaths else None,
                    )
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
            self._found.append(f"the sender of {sent.uid} saw {type(error).__name__}: {error}")
            return
        finally:
            room.release()
        sent.outcome = SendResult.OK
        if id_.ledger >= 0:
            sent.place = (id_.segment, id_.ledger, id_.entry, id_.batch_index)
        self._clients.readers.confirmed(sent.uid)
