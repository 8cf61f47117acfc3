"""Laws of segment storage: files and memory agree, and a crash loses no confirmed entry."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.format.commits import (
    Contents,
    LogDeleted,
    decode_commit,
    decode_commit_head,
    encode_commit,
    find_commit,
)
from anabranch.ledger.format.records import EntryRecord, decode_record, record_head, seed
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.memory import MemoryStorage
from anabranch.ledger.storage import Entry, SegmentLog, SegmentStorage
from anabranch.model.acks import AckSet
from anabranch.model.ids import Position
from anabranch.model.inheritance import Piece
from anabranch.model.ranges import FULL
from simulation.world.disk import SimDisk
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.platter import Platter
from simulation.world.process import SimProcess
from tests.fakes.disk import DictDisk
from tests.harness.storage import FixedClock

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@given(u64, u64, u32, u32, u64, i64, st.binary(max_size=200))
def test_a_record_comes_back_from_its_own_place_only(
    log: int, ledger: int, entry: int, count: int, index: int, timestamp_ms: int, data: bytes
) -> None:
    owner = seed(log, ledger)
    stored = record_head(owner, entry, count, index, timestamp_ms, data) + data
    assert decode_record(owner, entry, stored) == EntryRecord(entry, count, index, timestamp_ms, data)
    assert decode_record(owner, (entry + 1) % 2**32, stored) is None
    assert decode_record(seed(log, (ledger + 1) % 2**64), entry, stored) is None


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.data())
def test_whole_commits_are_kept_before_any_damaged_tail(payloads: list[bytes], data: st.DataObject) -> None:
    owner = seed(1, 1)
    journal = b""
    ends = [0]
    for number, payload in enumerate(payloads):
        commit = encode_commit(owner, number, len(journal), Contents([LogDeleted(number)], []), [payload])
        journal += b"".join(commit)
        ends.append(len(journal))
    cut = data.draw(st.integers(ends[-2], len(journal) - 1))
    torn = journal[:cut] + data.draw(st.binary(max_size=100))
    if torn.startswith(journal):
        return
    at, found = 0, []
    while (head := decode_commit_head(owner, torn, at, at)) is not None:
        commit_found = decode_commit(owner, head, torn[at : head.end])
        if commit_found is None or commit_found.damage:
            break
        assert commit_found.contents.changes == [LogDeleted(head.number)]
        found.append(commit_found.payload)
        at = head.end
    assert found == payloads[:-1]
    assert find_commit(owner, torn, at + 1, 0) is None


NAMES = ("persistent://public/default/a", "segment://public/default/t/0000-ffff-0")
DATA = bytes(10)
LEDGER_ENTRIES = 3

names = st.sampled_from(NAMES)
ordinals = st.integers(0, 12)
operations = st.one_of(
    st.tuples(st.just("append"), names, st.integers(1, 4), st.integers(1, 3), st.integers(0, 50)),
    st.tuples(st.just("ack"), names, st.lists(ordinals, min_size=1, max_size=10)),
    st.tuples(st.just("ack up to"), names, ordinals),
    st.tuples(st.just("ack part"), names, ordinals, st.integers(0, 7)),
    st.tuples(st.just("reset"), names, ordinals),
    st.tuples(st.just("delete cursor"), names),
    st.tuples(st.just("trim"), names, ordinals),
    st.tuples(st.just("seal"), names),
    st.tuples(st.just("inherit"), names, st.integers(0, 3)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("close"), names),
    st.tuples(st.just("crash"), names),
)


async def apply(storage: SegmentStorage, operation: tuple[Any, ...]) -> None:
    """Apply one action, and wait until it is durable."""
    what, name, *rest = operation
    if what == "delete":
        await storage.delete(name)
        return
    log = await storage.create(name)
    cursor = log.cursors.open("s", 0, {"made": "once"})
    match what, rest:
        case "append", [entries, count, timestamp_ms] if not log.sealed:
            for _ in range(entries):
                sequence = log.extent.next_ordinal
                log.append(DATA, count, timestamp_ms, lambda place, error: None, f"p{count}", sequence)
        case "ack", [given_ordinals]:
            cursor.acknowledge(given_ordinals)
        case "ack up to", [ordinal]:
            cursor.acknowledge_up_to(ordinal)
        case "ack part", [ordinal, remaining]:
            cursor.acknowledge_part(ordinal, remaining, 3)
        case "reset", [ordinal]:
            cursor.reset(ordinal)
        case "delete cursor", _:
            await log.cursors.delete("s")
        case "trim", [ordinal]:
            await log.trim(ordinal)
        case "seal", _:
            await log.seal()
        case "inherit", [sequence]:
            await log.inherit((Piece(FULL, {"p": sequence}),) if sequence else ())
    await log.flush()


async def story(storage: SegmentStorage) -> dict[str, object]:
    """The visible state of all logs, through the port."""
    return {name: await _story_of(log) for name in storage.names() if (log := storage.get(name)) is not None}


async def _story_of(log: SegmentLog) -> list[object]:
    entries: list[Entry] = []
    at = log.extent.first_ordinal
    while at < log.extent.next_ordinal:
        entries += await log.read(at, 2, 100)
        at = entries[-1].ordinal + 1
    ends = range(log.extent.first_ordinal, log.extent.next_ordinal + 2)
    # Files leave ledger ids out after a crash, so only the order of the ledgers must agree.
    ledgers = sorted({log.extent.position_of(ordinal).ledger for ordinal in ends})
    places = [log.extent.position_of(ordinal) for ordinal in ends]
    return [
        [entry._replace(position=_ranked(entry.position, ledgers)) for entry in entries],
        (log.extent.first_ordinal, log.extent.next_ordinal, log.extent.first_index, log.extent.next_index),
        (log.sealed, log.extent.size_bytes, log.extent.last_timestamp_ms),
        [
            (_ranked(place, ledgers), log.extent.index_of(o), log.extent.ordinal_of(place))
            for o, place in zip(ends, places, strict=True)
        ],
        [log.extent.count_of(o) for o in ends],
        [log.extent.ordinal_of_index(index) for index in range(log.extent.next_index + 2)],
        [log.extent.ordinal_at_time(timestamp_ms) for timestamp_ms in range(0, 60, 7)],
        {name: (cursor.acks.encode(), dict(cursor.properties)) for name, cursor in log.cursors.items()},
        dict(log.sequences.own),
        log.sequences.inherited,
    ]


def _ranked(position: Position, ledgers: list[int]) -> Position:
    return Position(ledgers.index(position.ledger), position.entry)


@settings(max_examples=150)
@given(
    st.lists(operations, max_size=25),
    st.sampled_from([1, 100, 10**6]),
    st.sampled_from([1, 500, 10**6]),
    st.sampled_from([0, 10**6]),
)
async def test_files_tell_the_same_story_as_memory(
    todo: list[tuple[Any, ...]], behind_bytes: int, journal_bytes_max: int, cache_bytes: int
) -> None:
    def make(disk: DictDisk) -> FileStorage:
        return FileStorage(
            disk,
            clock=FixedClock(),
            limits=StorageLimits(
                cache_bytes=cache_bytes,
                behind_bytes=behind_bytes,
                journal_bytes_max=journal_bytes_max,
                ledger_bytes_max=LEDGER_ENTRIES * (32 + len(DATA)),
            ),
        )

    memory = MemoryStorage(ledger_entries_max=LEDGER_ENTRIES)
    disk = DictDisk()
    files = make(disk)
    await memory.open()
    await files.open()
    for operation in todo:
        if operation[0] in ("close", "crash"):
            left = DictDisk(disk.files)
            await memory.close()
            await files.close()
            disk = left if operation[0] == "crash" else disk
            files = make(disk)
            await memory.open()
            await files.open()
        else:
            await apply(memory, operation)
            await apply(files, operation)
        assert await story(files) == await story(memory), operation
    await files.close()


def _is_between(low: AckSet, found: AckSet, high: AckSet) -> bool:
    return all(o in found for o in range(60) if o in low) and all(o in high for o in range(60) if o in found)


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=15),
    st.floats(0.0, 0.1),
    st.sampled_from([200, 10**6]),
)
async def test_a_power_failure_keeps_confirmed_acknowledgements_and_invents_none(
    number: int, rounds: list[list[int]], dies_after_s: float, journal_bytes_max: int
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    loop.seed = f"acks {number}"
    platter = Platter(loop)
    confirmed, asked = AckSet(), AckSet()

    def make(process: SimProcess) -> FileStorage:
        return FileStorage(
            SimDisk(platter, process),
            clock=SimClock(loop),
            limits=StorageLimits(journal_bytes_max=journal_bytes_max),
        )

    async def work(storage: FileStorage) -> None:
        nonlocal confirmed
        await storage.open()
        log = await storage.create(NAMES[0])
        cursor = log.cursors.open("s", 0)
        for ordinals in rounds:
            asked.acknowledge(ordinals)
            cursor.acknowledge(ordinals)
            if ordinals[0] % 2:
                done = AckSet.decode(cursor.acks.encode())
                await cursor.flush()
                confirmed = done

    process = SimProcess(loop, "first")
    process.spawn(work(make(process)))
    await asyncio.sleep(dies_after_s)
    process.kill(machine=True)
    second = SimProcess(loop, "second")
    storage = make(second)
    await second.spawn(storage.open())
    log = storage.get(NAMES[0])
    cursor = log.cursors.get("s") if log is not None else None
    found = AckSet() if cursor is None else cursor.acks
    assert _is_between(confirmed, found, asked), (confirmed, found, asked)
