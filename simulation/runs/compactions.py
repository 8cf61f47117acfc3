"""A compacted topic in a cluster run: the latest value of each key is never lost, and keys stay in order.

A sender publishes values and tombstones to a `persistent://` topic, which is compacted meanwhile by brokers
that may die at any step. Afterwards `judge` reads the topic as a compacted reader does.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.trimming import trim
from anabranch.client.produce.producer import AsyncProducer
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.protocol.entries import decode_columns
from simulation.cluster.cluster import Death
from simulation.cluster.host import Host
from simulation.runs.clients import Clients
from simulation.runs.shape import COMPACTION_STEPS, SENDER, Shape
from simulation.world.process import SimProcess

COMPACTED = TopicName("persistent", "public", "default", "compacted")
KEYS = ("a", "b", "c", "d")
MESSAGES = 40
MORE_TURNS = 60
"""How often a compaction that is due looks for new messages, 20 times a second."""
LAST_S = 60.0
"""After the faults, all messages are stored and a compaction is done within this time."""


@dataclass(slots=True)
class Value:
    """One message of a key; None is a tombstone."""

    value: bytes | None
    confirmed: bool = False


def judge_keys(sent: Mapping[str, Sequence[Value]], seen: Sequence[tuple[str, bytes | None]]) -> list[str]:
    """The violations in what a compacted reader sees, in words."""
    found: list[str] = []
    for key, values in sent.items():
        last = -1
        for value in (value for other, value in seen if other == key):
            later = [number for number in range(last + 1, len(values)) if values[number].value == value]
            if not later:
                found.append(f"compacted topic: {value!r} of key {key} came after {values[last].value!r}")
                break
            last = later[0]
        confirmed = max((at for at, one in enumerate(values) if one.confirmed), default=-1)
        deleted = any(one.value is None for one in values[max(confirmed, 0) :])
        if last < confirmed and not (last == -1 and deleted):
            found.append(
                f"compacted topic: the latest value {values[confirmed].value!r} of key {key} is lost"
            )
    return found


class Compactions:
    """The compacted topic of one run."""

    def __init__(self, clients: Clients, shape: Shape, found: list[str]) -> None:
        self._clients = clients
        self._cluster = clients.cluster
        self._shape = shape
        self._found = found
        self._rng = clients.cluster.loop.random("compactions")
        drawn = self._rng.choice((0, 0, 0, 2, 4))
        # Damaged entries are skipped, so their values may be lost.
        wanted = drawn if shape.compactions is None else shape.compactions
        self._count = 0 if shape.disk.damaged else wanted
        self._sent: dict[str, list[Value]] = defaultdict(list)
        self._sending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Send, and compact at random times; returns when the last compaction has ended."""
        if not self._count:
            return
        process = self._clients.process("sender of values")
        self._sending = process.spawn(self._send(process))
        for _ in range(self._count):
            await self._more()
            if not self._cluster.deaths and self._rng.random() < 0.5:
                step = f"compaction.{self._rng.choice(COMPACTION_STEPS)}"
                self._cluster.deaths.append(Death(step, machine=self._rng.random() < 0.5))
            self._clients.counts["compacted"] += await self._compact()

    async def _more(self) -> None:
        """Wait until some more messages are stored, or for some time."""
        before, wanted = self._confirmed, self._rng.randrange(1, 10)
        for _ in range(MORE_TURNS):
            if self._confirmed >= before + wanted:
                return
            await asyncio.sleep(0.05)

    @property
    def _confirmed(self) -> int:
        return sum(one.confirmed for values in self._sent.values() for one in values)

    async def _send(self, process: SimProcess) -> None:
        try:
            async with self._cluster.client(process, SENDER) as client:
                producer: AsyncProducer[bytes] = await client.create_producer(str(COMPACTED), name="values")
                for number in range(MESSAGES):
                    await asyncio.sleep(self._rng.uniform(0, 2 * self._shape.busy_s / MESSAGES))
                    key = self._rng.choice(KEYS)
                    one = Value(None if self._rng.random() < 0.15 else b"%d" % number)
                    self._sent[key].append(one)
                    await producer.send(one.value, key=key)
                    one.confirmed = True
        except (AnabranchError, TimeoutError):
            # A message whose outcome is unknown must be the last one.
            self._clients.counts["sender of values failed"] += 1

    def _owner(self) -> Host | None:
        for host in self._cluster.running:
            if host.up.is_set() and host.broker and host.broker.stores.get(str(COMPACTED)) is not None:
                return host
        return None

    async def _compact(self) -> bool:
        """Compact at the broker that serves the topic; returns whether it is done."""
        host = self._owner()
        if host is None:
            return False
        try:
            work = _compact_and_trim if self._rng.random() < 0.7 else _compact
            return bool(await self._cluster.in_broker(work, host))
        except (AnabranchError, OSError):
            return False

    async def finish(self) -> None:
        """After the faults: wait for the sender, and compact once more."""
        if self._sending is None:
            return
        await asyncio.wait([self._sending], timeout=LAST_S)
        deadline = self._cluster.loop.time() + LAST_S
        while self._confirmed and not await self._compact():
            if self._cluster.loop.time() > deadline:
                self._found.append(f"compacted topic: no compaction is done after {LAST_S:g} s")
                return
            await asyncio.sleep(0.5)

    async def judge(self) -> None:
        """Compare what a compacted reader sees with what was sent."""
        if not self._confirmed:
            return
        host = self._owner()
        seen = None if host is None else await self._cluster.in_broker(_read, host)
        if seen is None:
            self._found.append("compacted topic: no broker serves it")
        else:
            self._found += judge_keys(self._sent, seen)


async def _compact(broker: Broker) -> bool:
    log = broker.logs.require(COMPACTED)
    with log.use.call():
        await log.compacting.run(broker.clock.wall_ms)
    return True


async def _compact_and_trim(broker: Broker) -> bool:
    """Drop what retention may drop after a compaction: whole ledgers of compacted entries."""
    await _compact(broker)
    log = broker.logs.require(COMPACTED)
    with log.use.call():
        await trim(log.log, log.log.extent.next_ordinal)
    return True


async def _read(broker: Broker) -> list[tuple[str, bytes | None]]:
    """Keys and values of all messages that a compacted reader sees."""
    view, found = broker.logs.require(COMPACTED).compacted, list[tuple[str, bytes | None]]()
    ordinal = view.first_ordinal
    while ordinal < view.next_ordinal:
        entries = await view.read(ordinal, 100, 2**20)
        if not entries:
            break
        for entry in entries:
            columns = decode_columns(entry.data, 2**20)
            pairs = zip(columns.keys, columns.values, strict=True)
            found += [(key.decode(), value) for key, value in pairs if key is not None]
        ordinal = entries[-1].ordinal + 1
    return found
