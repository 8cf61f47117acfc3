"""A store with a history, damage to one of its files, and a judge of what is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.errors import DamagedEntriesError
from anabranch.ledger.disks.disk import Disk
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.acks import AckSet
from anabranch.model.ids import Position
from tests.fakes.disk import DictDisk
from tests.harness.storage import FixedClock, Outcomes, crashed

NAMES = tuple(f"persistent://public/default/log-{letter}" for letter in "abcd")
CURSORS = ("one", "two")
TOP = 1000
"""Ordinals that the judge compares in acknowledgements."""


@dataclass
class Told:
    """Everything that one log confirmed."""

    entries: dict[int, Entry] = field(default_factory=dict)
    """By ordinal; trimmed entries are not in it."""
    acks: dict[str, AckSet] = field(default_factory=dict)
    sealed: bool = False
    sequences: dict[str, int] = field(default_factory=dict)


@dataclass
class StoreHistory:
    """A store as a killed process left it, and everything it confirmed."""

    files: dict[str, bytes]
    logs: dict[str, Told]
    places: dict[tuple[str, Position], Entry]
    """Every entry that was ever confirmed, by log and position; also of deleted logs."""
    indexes: dict[str, int]
    """The highest index that each log gave to a message."""


def storage_on(disk: Disk) -> FileStorage:
    limits = StorageLimits(cache_bytes=0, journal_bytes_max=9000, ledger_bytes_max=2500, behind_bytes=1500)
    return FileStorage(disk, clock=FixedClock(), limits=limits)


async def make_history(seed: int) -> StoreHistory:
    """Several processes append, acknowledge, seal, trim and delete; the last one is killed."""
    rng = random.Random(seed)
    history = StoreHistory({}, {name: Told() for name in NAMES}, {}, {})
    disk = DictDisk()
    for round_ in range(4):
        storage = storage_on(disk)
        await storage.open()
        for _ in range(25):
            await _work(storage, rng, history)
        if round_ == 1:
            await storage.close()
        else:
            disk = await crashed(disk, storage)
    history.files = {file: data for file, data in disk.files.items() if data}
    return history


async def _work(storage: FileStorage, rng: random.Random, history: StoreHistory) -> None:
    name = rng.choice(NAMES)
    log, told = await storage.create(name), history.logs[name]
    chance = rng.random()
    if chance < 0.6 and not log.sealed:
        await append(log, told, history, rng)
    elif chance < 0.9 and log.extent.next_ordinal:
        cursor = log.cursors.open(rng.choice(CURSORS), 0)
        cursor.acknowledge([rng.randrange(log.extent.next_ordinal) for _ in range(3)])
        await cursor.flush()
        told.acks[cursor.name] = AckSet.decode(cursor.acks.encode())
    elif chance < 0.92 and name == NAMES[0]:
        await log.seal()
        told.sealed = True
    elif chance < 0.96 and name == NAMES[1]:
        await log.trim(log.extent.next_ordinal // 2)
        told.entries = {o: e for o, e in told.entries.items() if o >= log.extent.first_ordinal}
    elif chance < 0.98 and name == NAMES[2]:
        await storage.delete(name)
        history.logs[name] = Told()
        history.indexes.pop(name, None)


async def append(log: SegmentLog, told: Told, history: StoreHistory, rng: random.Random) -> None:
    """Append some entries in one commit, and note what the log confirms."""
    outcomes = Outcomes()
    sequence = log.extent.next_ordinal
    for _ in range(rng.randrange(1, 6)):
        data = rng.randbytes(rng.randrange(0, 300))
        log.append(data, rng.randrange(1, 4), 1000 + rng.randrange(100), outcomes, "producer", sequence)
    await log.flush()
    for place in outcomes.places:
        assert (log.name, place.position) not in history.places, f"{log.name} {place.position} is used twice"
        history.places[log.name, place.position] = place
        history.indexes[log.name] = place.index + place.count - 1
        told.entries[place.ordinal] = place
    told.sequences["producer"] = sequence


class DamageJudge:
    """Opens a damaged copy of a store and compares it with its history."""

    def __init__(self, history: StoreHistory, *, exact: bool = False, cut: bool = False) -> None:
        """`exact` forbids any loss but that of entries; `cut` allows a silent loss at the end."""
        self._history = history
        self._exact = exact
        self._cut = cut
        self.lost = 0
        """Confirmed entries that cannot be read."""
        self.reported = False

    async def judge(self, make_disk: Callable[[], Disk], rng: random.Random) -> None:
        """Raise AssertionError for wrong data, silent loss, or a repeated place."""
        storage = storage_on(make_disk())
        # A loop of many judgements on virtual time must let the time pass.
        await asyncio.sleep(0.001)
        await storage.open()
        self.reported = bool(storage.findings)
        announced = sum(finding.lost_entries for finding in storage.findings)
        for name, told in self._history.logs.items():
            log = storage.get(name)
            if log is None:
                assert self._may_lack or not (told.entries or told.acks), f"{name} is gone"
                self.lost += len(told.entries)
                continue
            await self._compare(log, told)
            if self._exact:
                assert log.sealed == told.sealed
                assert dict(log.sequences.own) == told.sequences
            self._compare_cursors(log, told)
            await self._go_on(log, rng)
        assert announced <= self.lost or not self._exact, "more entries are reported as lost than are lost"
        await storage.close()
        again = storage_on(make_disk())
        await again.open()
        assert not again.findings, f"the repair did not last: {again.findings}"
        await again.close()

    @property
    def _may_lack(self) -> bool:
        """Whether changes of logs and cursors may be lost."""
        return not self._exact and (self.reported or self._cut)

    async def _compare(self, log: SegmentLog, told: Told) -> None:
        extent = log.extent
        for ordinal, entry in told.entries.items():
            if not extent.first_ordinal <= ordinal < extent.next_ordinal:
                assert self._may_lack, f"{log.name} lost {ordinal} silently"
                self.lost += 1
            elif not await self._is_sound(log, ordinal, entry):
                self.lost += 1
        for ordinal in range(extent.first_ordinal, extent.next_ordinal):
            if ordinal not in told.entries:
                # A lost trim or deletion brings entries back, and no other change does.
                assert self._may_lack, f"{log.name} invented {ordinal}"
                entry = self._history.places[log.name, extent.position_of(ordinal)]
                await self._is_sound(log, ordinal, entry)

    async def _is_sound(self, log: SegmentLog, ordinal: int, entry: Entry) -> bool:
        try:
            found = (await log.read(ordinal, 1, 10_000))[0]
        except DamagedEntriesError:
            self.reported = True
            return False
        assert found == entry
        return True

    def _compare_cursors(self, log: SegmentLog, told: Told) -> None:
        for name in CURSORS:
            want, cursor = told.acks.get(name), log.cursors.get(name)
            if cursor is None:
                assert self._may_lack or want is None
                continue
            for ordinal in range(log.extent.first_ordinal, TOP):
                if ordinal in cursor.acks:
                    assert want is None or ordinal in want, f"{log.name} {name} is ahead at {ordinal}"
                else:
                    assert self._may_lack or want is None or ordinal not in want

    async def _go_on(self, log: SegmentLog, rng: random.Random) -> None:
        """New entries get new places, and no acknowledgement."""
        if log.sealed:
            return
        told, after = Told(), StoreHistory({}, {}, dict(self._history.places), {})
        await append(log, told, after, rng)
        for ordinal, entry in told.entries.items():
            assert (await log.read(ordinal, 1, 10_000))[0] == entry
            if self.reported or not self.lost:
                assert entry.index > self._history.indexes.get(log.name, -1)
            for cursor in log.cursors.values():
                assert ordinal not in cursor.acks
