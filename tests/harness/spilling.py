"""One subscription with spilled entries on the simulated disk, and a model of its pending messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from anabranch.broker.catalog.side_logs import delete_garbage
from anabranch.broker.catalog.stores import Stores
from anabranch.broker.catalog.trimming import trim
from anabranch.broker.serving.context import LogContext, LogUse, SubscriptionContext, SubscriptionLimits
from anabranch.broker.serving.rates.throttles import Throttles
from anabranch.broker.serving.subscription.backing import Backing
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.metadata.producer_epochs import TopicEpoch
from anabranch.model.names import TopicName
from simulation.world.disk import SimDisk
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.platter import Platter
from simulation.world.process import SimProcess

NAME = "persistent://public/default/orders"
STEPS = ["spill.copied", "spill.synced", "spill.acknowledged", "spill.drained", "spill.deleted"]
DATA_BYTES = 50
LIMIT_BYTES = 400


class StopAt:
    """Failpoints that never return from one step."""

    def __init__(self) -> None:
        self.step, self.times = "", 1
        self.reached = asyncio.Event()

    async def reach(self, name: str) -> None:
        self.times -= name == self.step
        if name == self.step and self.times == 0:
            self.reached.set()
            await asyncio.Event().wait()


class SpillingStore:
    """One store on one disk, whose process may die; one subscription of one log in it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._platter = Platter(loop)
        self._starts = 0
        self.pending: dict[int, int] = {}
        """The model: by ordinal the bits of the pending messages."""
        self.stored: dict[int, Entry] = {}

    async def start(self, spill_bytes: int | None = LIMIT_BYTES) -> None:
        self._starts += 1
        self.process = SimProcess(self._loop, f"store-{self._starts}")
        self.points = StopAt()
        await self.process.spawn(self._open(spill_bytes))

    async def _open(self, spill_bytes: int | None) -> None:
        clock = SimClock(self._loop)
        limits = StorageLimits(cache_bytes=1000, journal_bytes_max=3000, ledger_bytes_max=500, behind_bytes=1)
        self.storage = FileStorage(SimDisk(self._platter, self.process), clock=clock, limits=limits)
        await self.storage.open()
        self.log = await self.storage.create(NAME)
        context = LogContext(
            clock,
            self._spawn,
            lambda turn: None,
            SubscriptionLimits(spill_bytes=spill_bytes),
            1.0,
            _epoch,
            lambda name, _: _epoch(name),
            failpoints=self.points,
        )
        self.context = SubscriptionContext(
            self.log,
            -1,
            context,
            Throttles().of(TopicName.parse(NAME)),
            LogUse(0.0),
            self.storage,
            lambda name, ranges: None,
        )
        cursor = self.log.cursors.open("s", 0)
        await self.log.flush()
        self.backing = Backing(cursor, self.context)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.process.spawn(coroutine)

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        async def wrapped() -> None:
            await work()

        await self.process.spawn(wrapped())

    async def crash(self, *, machine: bool) -> None:
        self.process.kill(machine=machine)
        await self.start()

    async def publish(self, count: int, messages: int = 1) -> None:
        done: list[Entry] = []

        def stored(entry: Entry | None, error: BaseException | None) -> None:
            assert entry is not None
            done.append(entry)

        first = self.log.extent.next_ordinal
        for number in range(count):
            self.log.append(b"%06d" % (first + number) + bytes(DATA_BYTES), messages, 1, stored)
        await self.log.flush()
        for entry in done:
            self.pending[entry.ordinal] = (1 << entry.count) - 1
            self.stored[entry.ordinal] = entry

    async def acknowledge(self, ordinals: list[int]) -> None:
        self.backing.cursor.acknowledge(ordinals)
        for ordinal in ordinals:
            self.pending.pop(ordinal, None)
        await self.backing.cursor.flush()

    async def acknowledge_part(self, ordinal: int, keep: int) -> None:
        count = self.stored[ordinal].count
        self.backing.cursor.acknowledge_part(ordinal, keep, count)
        left = self.pending.get(ordinal, 0) & keep
        self.pending.pop(ordinal, None)
        if left:
            self.pending[ordinal] = left
        await self.backing.cursor.flush()

    async def spill(self) -> None:
        """Spill all that is due, and delete all that is drained."""
        self.backing.look_soon(self.log.extent.next_ordinal)
        await asyncio.sleep(5)
        assert not self.backing.working

    async def trim(self) -> None:
        await trim(self.log, self.log.extent.next_ordinal)
        stores = Stores(lambda number: self.storage)
        stores.opened[0] = self.storage
        await delete_garbage(stores)
        for name in self.storage.side_names():
            side = self.storage.get(name)
            assert side is not None
            await trim(side, side.extent.next_ordinal)
        assert not self.backing.pass_trimmed()

    async def check(self) -> None:
        """The cursor, and both ways to read, show the entries that are pending in the model."""
        acks, log = self.backing.cursor.acks, self.backing.log
        end = self.log.extent.next_ordinal
        pending = list(acks.pending_below(end))
        assert pending == sorted(self.pending)
        for ordinal, bits in self.pending.items():
            whole = (1 << self.stored[ordinal].count) - 1
            assert acks.remaining(ordinal) in ((None, whole) if bits == whole else (bits,)), ordinal
        expected = [self.stored[ordinal] for ordinal in pending]
        found: list[Entry] = []
        while len(found) < len(pending):
            more = await log.read_each(pending[len(found) :], 300)
            assert more
            found += more
        assert found == expected
        at, found = acks.next_pending(0), []
        while at < end:
            more = log.read_cached(at, 3, 1000) or await log.read(at, 3, 1000)
            found += [entry for entry in more if entry.ordinal in self.pending]
            at = acks.next_pending(more[-1].ordinal + 1)
        assert found == expected
        for entry in expected:
            assert log.extent.ordinal_of(entry.position) == entry.ordinal
            assert log.extent.position_of(entry.ordinal) == entry.position
            assert log.extent.count_of(entry.ordinal) == entry.count


async def _epoch(name: TopicName) -> TopicEpoch:
    return TopicEpoch()


def sides(store: SpillingStore) -> list[SegmentLog]:
    return [log for name in store.storage.side_names() if (log := store.storage.get(name)) is not None]


async def with_hot_key(store: SpillingStore, entries: int = 60) -> None:
    """Every third entry stays pending; the others are acknowledged."""
    await store.publish(entries)
    await store.acknowledge([at for at in range(entries) if at % 3])
