"""Segment storage alone under crashes: every confirmed entry is at the same place after every restart.

One process appends to a few logs, acknowledges, seals and trims, with limits so small that ledgers roll and
checkpoints happen all the time. Then the process or its machine dies, and the next process checks the logs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from anabranch.errors import AnabranchError, DamagedEntriesError
from anabranch.ledger.cursors import Cursor
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.inheritance import Piece
from anabranch.model.ranges import FULL
from simulation.world.disk import SimDisk
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.platter import Platter
from simulation.world.process import SimProcess

LOGS = ("a", "b", "c")
CURSOR = "reader"


@dataclass(slots=True)
class _Expected:
    """The entries and marks that one log must or may have."""

    submitted: list[bytes] = field(default_factory=list)
    confirmed: dict[int, Entry] = field(default_factory=dict)
    """By ordinal."""
    sealed: bool = False
    flushed_mark: int = 0
    """All entries below are acknowledged durably."""
    asked_mark: int = 0
    sequences: dict[str, int] = field(default_factory=dict)
    inherited: int = -1
    """The newest inherited sequence that is durable."""
    offered: int = -1


class StorageRun:
    """Rounds of work and crash on one disk."""

    def __init__(self, seed: int, *, rounds: int = 4) -> None:
        self.loop = SimLoop(f"storage {seed}")
        self.rng: random.Random = self.loop.random("storage")
        self.platter = Platter(self.loop)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._rounds = rounds
        self._logs = {name: _Expected() for name in LOGS}
        self._written = 0
        self._flipped = False
        """Whether a bit of a file was turned over, which may cost one entry."""
        self._damaged: set[tuple[str, int]] = set()

    def run(self) -> list[str]:
        """Run all rounds; return the violations."""
        with self.loop:
            self.loop.run(self._run(), limit_s=600)
            self.violations += self.loop.errors
        return self.violations

    async def _run(self) -> None:
        for number in range(self._rounds):
            process = SimProcess(self.loop, f"storage-{number}")
            storage = FileStorage(
                SimDisk(self.platter, process),
                clock=SimClock(self.loop),
                limits=StorageLimits(
                    cache_bytes=self.rng.choice((0, 300, 100_000)),
                    journal_bytes_max=self.rng.choice((600, 3000, 100_000)),
                    ledger_bytes_max=self.rng.choice((200, 1500, 50_000)),
                    behind_bytes=self.rng.choice((1, 500, 5000)),
                ),
            )
            opening = process.spawn(storage.open())
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.uniform(0, 0.02))
                self.counts["crashed while recovering"] += not opening.done()
                process.kill(machine=self.rng.random() < 0.7)
                continue
            await opening
            await process.spawn(self._check(storage))
            work = process.spawn(self._work(storage))
            if number == self._rounds - 1:
                await work
                await process.spawn(storage.close())
                break
            await asyncio.sleep(self.rng.uniform(0, 0.3))
            self.counts["crashed while working"] += not work.done()
            machine = self.rng.random() < 0.7
            process.kill(machine=machine)
            # The end of a journal that a power failure cut off does not prove damage, so it stays whole here.
            if not machine and not self._flipped and self.rng.random() < 0.5:
                self._flipped = self.platter.flip_bit() is not None
        await self._look_again()
        self.counts.update(self.platter.outcomes)

    async def _look_again(self) -> None:
        process = SimProcess(self.loop, "storage-last")
        storage = FileStorage(SimDisk(self.platter, process), clock=SimClock(self.loop))
        await process.spawn(storage.open())
        await process.spawn(self._check(storage))
        process.kill()

    async def _work(self, storage: FileStorage) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in LOGS:
                tasks.create_task(self._work_on(await storage.create(name), self._logs[name]))

    async def _work_on(self, log: SegmentLog, expected: _Expected) -> None:
        cursor = log.cursors.open(CURSOR, 0)
        for _ in range(self.rng.randrange(5, 40)):
            what = self.rng.random()
            if what < 0.7 and not expected.sealed:
                for _ in range(self.rng.randrange(1, 6)):
                    self._append(log, expected)
            elif what < 0.85:
                await self._acknowledge(log, cursor, expected)
            elif what < 0.86 and len(expected.submitted) > 20:
                expected.sealed = True
                await log.seal()
                self.counts["sealed"] += 1
            elif what < 0.88:
                await self._inherit(log, expected)
            elif what < 0.9:
                with suppress(DamagedEntriesError):
                    await log.read(self.rng.randrange(log.extent.next_ordinal + 1), 10, 1000)
            await asyncio.sleep(self.rng.uniform(0, 0.01))

    def _append(self, log: SegmentLog, expected: _Expected) -> None:
        self._written += 1
        data = f"{self._written}:".encode() + bytes(self.rng.randrange(0, 200))
        ordinal = len(expected.submitted)
        expected.submitted.append(data)
        sequence = self._written

        def done(place: Entry | None, error: BaseException | None) -> None:
            if place is None:
                self.violations.append(f"an append failed: {error}")
                return
            expected.confirmed[ordinal] = place
            expected.sequences["producer"] = sequence
            self.counts["confirmed"] += 1

        try:
            log.append(data, 1 + ordinal % 3, 1000 + self._written, done, "producer", sequence)
        except AnabranchError as error:
            self.violations.append(f"an append was refused: {error}")

    async def _acknowledge(self, log: SegmentLog, cursor: Cursor, expected: _Expected) -> None:
        mark = self.rng.randrange(expected.asked_mark, log.extent.next_ordinal + 1)
        expected.asked_mark = mark
        cursor.acknowledge_up_to(mark)
        cursor.set_note(b"%d" % mark)
        await cursor.flush()
        expected.flushed_mark = max(expected.flushed_mark, mark)
        self.counts["acknowledged"] += 1

    async def _inherit(self, log: SegmentLog, expected: _Expected) -> None:
        expected.offered += 1
        await log.inherit((Piece(FULL, {"ancestor": expected.offered}),))
        expected.inherited = expected.offered
        self.counts["inherited"] += 1

    async def _check(self, storage: FileStorage) -> None:
        if not self._flipped:
            self.violations += [f"a crash was taken for damage: {finding}" for finding in storage.findings]
        for name in LOGS:
            log = storage.get(name)
            expected = self._logs[name]
            if log is None:
                if expected.confirmed or expected.flushed_mark or expected.inherited >= 0:
                    self.violations.append(f"log {name} is gone")
                self._logs[name] = _Expected()
                continue
            await self._check_log(log, expected)

    async def _check_log(self, log: SegmentLog, expected: _Expected) -> None:
        found = await self._read_all(log)
        wrong = self.violations.append
        end = log.extent.next_ordinal
        if any(entry.data != expected.submitted[entry.ordinal] for entry in found):
            wrong(f"log {log.name} holds other entries than were written")
        if expected.confirmed and max(expected.confirmed) >= end:
            wrong(f"log {log.name} lost confirmed entries: {max(expected.confirmed) + 1} became {end}")
        self._check_places(log, found, expected)
        if log.sealed and not expected.sealed:
            wrong(f"log {log.name} is sealed without a request")
        self._check_cursor(log, expected)
        told = expected.sequences.get("producer", -1)
        if log.sequences.own.get("producer", -1) < told:
            wrong(f"log {log.name} forgot sequence {told}")
        inherited = log.sequences.inherited[0].sequences["ancestor"] if log.sequences.inherited else -1
        if not expected.inherited <= inherited <= expected.offered:
            wrong(f"log {log.name} inherited {expected.inherited}, not {inherited}")
        expected.inherited = expected.offered = inherited
        # Unconfirmed entries that were not kept are lost, also for the next comparison.
        del expected.submitted[end:]
        expected.sealed = log.sealed

    async def _read_all(self, log: SegmentLog) -> list[Entry]:
        """All entries; one flipped bit may cost one of them."""
        found: list[Entry] = []
        at = 0
        while at < log.extent.next_ordinal:
            try:
                found += await log.read(at, 7, 400)
                at = found[-1].ordinal + 1
            except DamagedEntriesError as error:
                self._damaged.update((log.name, ordinal) for ordinal in range(at, error.end))
                self.counts["entry damaged"] += 1
                at = error.end
        if len(self._damaged) > self._flipped:
            self.violations.append(f"log {log.name}: entries {sorted(self._damaged)} are damaged")
        return found

    def _check_places(self, log: SegmentLog, found: list[Entry], expected: _Expected) -> None:
        wrong = self.violations.append
        index = 0
        for entry in found:
            if (log.name, entry.ordinal - 1) in self._damaged:
                index = entry.index
            place = expected.confirmed.get(entry.ordinal)
            if place is not None and place != entry:
                wrong(f"log {log.name}: {place[:5]} was confirmed, {entry[:5]} was found")
            if entry.index != index:
                wrong(f"log {log.name}: index {entry.index} where {index} was expected")
            index += entry.count

    def _check_cursor(self, log: SegmentLog, expected: _Expected) -> None:
        cursor = log.cursors.get(CURSOR)
        mark = cursor.acks.mark if cursor is not None else 0
        low, high = expected.flushed_mark, expected.asked_mark
        if not low <= mark <= high:
            self.violations.append(f"log {log.name}: mark {mark} is not between {low} and {high}")
        expected.asked_mark = max(mark, expected.flushed_mark)
        noted = int(cursor.note or b"0") if cursor is not None else 0
        if noted != mark:
            self.violations.append(f"log {log.name}: the note says {noted}, the mark is {mark}")
