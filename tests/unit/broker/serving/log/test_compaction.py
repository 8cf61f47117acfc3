"""Compaction: the latest value of each key, then the tail; a crash at any step loses nothing."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from anabranch.broker.catalog.side_logs import delete_garbage
from anabranch.broker.catalog.stores import Stores
from anabranch.broker.catalog.trimming import trim
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.broker.serving.log.compacting import Compacting
from anabranch.broker.serving.side_logs.compacted_log import CompactedLog
from anabranch.ledger.storage import Entry
from anabranch.model.ids import Position
from anabranch.model.names import TopicName
from anabranch.protocol.entry.batches import MessageBatch
from anabranch.protocol.entry.compression import Compression
from anabranch.protocol.entry.entries import decode_columns
from simulation.world.loop import SimLoop
from tests.harness.spilling import NAME, SpillingStore

STEPS = [
    "compaction.named",
    "compaction.copying",
    "compaction.copied",
    "compaction.switched",
    "compaction.marked",
]
Messages = list[tuple[str | None, bytes | None]]
"""Keys and values. The key None stands for a message without a key, the value None for a tombstone."""


def entry_of(messages: Messages, compression: Compression = Compression.NONE) -> bytes:
    batch = MessageBatch()
    for number, (key, value) in enumerate(messages):
        batch.add(value or b"", key, number, null_value=value is None)
    return batch.build("p", 1, compression=compression)


class CompactedStore(SpillingStore):
    """A log with keyed messages, and a model of what a compacted reader has to see."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop)
        self.sent: list[Messages] = []

    def open_view(self) -> None:
        """Make the view of the log, as a broker does after a start."""
        self.view = CompactedLog(self.log, self.storage.get)
        name = TopicName.parse(NAME)
        self.compacting = Compacting(name, self.log, self.view, self.storage, self.points)

    async def send(self, *messages: tuple[str | None, bytes | None], compressed: bool = False) -> None:
        data = entry_of(list(messages), Compression.ZSTD if compressed else Compression.NONE)
        self.log.append(data, len(messages), 1, lambda entry, error: None)
        await self.log.flush()
        self.sent.append(list(messages))

    async def compact(self) -> None:
        await self.compacting.run(lambda: 1)

    async def drop_old(self) -> None:
        """Trim everything that is compacted, and delete the garbage, as brokers do."""
        self.backing.cursor.acknowledge_up_to(self.log.extent.next_ordinal)
        await trim(self.log, self.log.extent.next_ordinal)
        stores = Stores(lambda number: self.storage)
        stores.opened[0] = self.storage
        await delete_garbage(stores)

    def expected(self) -> list[tuple[int, str | None, bytes | None]]:
        """Ordinal, key and value of each message: the latest below the horizon, and all behind it."""
        horizon = self.view.horizon
        latest: dict[str, tuple[int, int]] = {}
        for ordinal, messages in enumerate(self.sent[:horizon]):
            for index, (key, value) in enumerate(messages):
                if key is not None and value:
                    latest[key] = (ordinal, index)
                elif key is not None:
                    latest.pop(key, None)
        return [
            (ordinal, key, value)
            for ordinal, messages in enumerate(self.sent)
            for index, (key, value) in enumerate(messages)
            if ordinal >= horizon or (key is not None and latest.get(key) == (ordinal, index))
        ]

    async def check(self) -> None:
        found: list[tuple[int, str | None, bytes | None]] = []
        at = self.view.first_ordinal
        while at < self.view.next_ordinal:
            entries = self.view.read_cached(at, 2, 300) or await self.view.read(at, 2, 300)
            for entry in entries:
                found += self._messages(entry)
            if not entries:
                break
            at = entries[-1].ordinal + 1
        assert found == self.expected()

    def _messages(self, entry: Entry) -> list[tuple[int, str | None, bytes | None]]:
        columns = decode_columns(entry.data, 2**20)
        assert columns.batch_size == len(self.sent[entry.ordinal])
        if entry.ordinal < self.view.horizon:
            assert self.view.ordinal_of(entry.position) == entry.ordinal
            assert self.view.position_of(entry.ordinal) == entry.position
        keys = [None if key is None else key.decode() for key in columns.keys]
        return [(entry.ordinal, key, value) for key, value in zip(keys, columns.values, strict=True)]


@pytest.fixture
async def store(loop: SimLoop) -> CompactedStore:
    store = CompactedStore(loop)
    await store.start(None)
    store.open_view()
    return store


async def test_before_a_compaction_its_readers_see_every_message(store: CompactedStore) -> None:
    await store.run(lambda: store.send(("a", b"1"), ("a", b"2")))
    await store.run(store.check)
    assert store.view.horizon == 0
    assert store.compacting.status == "NOT_RUN"


async def test_the_latest_value_of_each_key_stays_and_then_comes_the_tail(store: CompactedStore) -> None:
    async def work() -> None:
        await store.send(("a", b"1"), ("b", b"1"), (None, b"no key"))
        await store.send(("a", b"2"))
        await store.send(("gone", b"1"), ("c", b"1"), compressed=True)
        await store.send(("gone", None))
        await store.compact()
        await store.send(("a", b"3"), ("gone", None), (None, b"tail"))
        await store.check()

    await store.run(work)
    assert store.view.horizon == 4
    assert [message[1:] for message in store.expected()[:3]] == [("b", b"1"), ("a", b"2"), ("c", b"1")]
    assert store.compacting.status == "SUCCESS"


async def test_a_second_compaction_replaces_the_first_and_leaves_no_side_log_behind(
    store: CompactedStore,
) -> None:
    async def work() -> None:
        for number in range(20):
            await store.send((f"k{number % 3}", b"%d" % number))
        await store.compact()
        await store.drop_old()
        await store.check()
        for number in range(20, 40):
            await store.send((f"k{number % 4}", b"%d" % number))
        await store.compact()
        await store.drop_old()
        await store.check()

    await store.run(work)
    assert len(store.storage.side_names()) == 1
    assert store.log.extent.first_ordinal > 0


async def test_entries_that_are_not_compacted_yet_are_not_trimmed(store: CompactedStore) -> None:
    async def work() -> None:
        for number in range(20):
            await store.send(("a", b"%d" % number))
        await store.compact()
        for number in range(20, 40):
            await store.send((f"b{number}", b"%d" % number))
        await store.drop_old()
        await store.check()

    await store.run(work)
    assert store.log.extent.first_ordinal <= 20
    assert store.log.cursors[COMPACTION].acks.mark == 20


async def test_when_every_key_is_deleted_nothing_is_left_of_the_compacted_part(store: CompactedStore) -> None:
    async def work() -> None:
        await store.send(("a", b"1"))
        await store.send(("a", None))
        await store.compact()
        await store.check()
        await store.send(("a", b"2"))
        await store.check()

    await store.run(work)
    assert [message[1:] for message in store.expected()] == [("a", b"2")]
    assert not store.storage.side_names()


async def test_a_compaction_without_news_changes_nothing(store: CompactedStore) -> None:
    async def work() -> None:
        await store.compact()
        await store.send(("a", b"1"))
        await store.compact()
        before = store.storage.side_names()
        await store.compact()
        assert store.storage.side_names() == before

    await store.run(work)


@pytest.mark.parametrize("machine", [False, True])
@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_at_any_step_loses_nothing(store: CompactedStore, step: str, machine: bool) -> None:
    async def first() -> None:
        for number in range(12):
            await store.send((f"k{number % 3}", b"%d" % number), (f"x{number}", b"x"))
        await store.compact()
        await store.drop_old()
        for number in range(12, 30):
            await store.send((f"k{number % 4}", b"%d" % number), (f"x{number - 12}", None))

    await store.run(first)
    store.points.step = step
    store.process.spawn(store.compact())
    await store.points.reached.wait()
    await store.crash(machine=machine)
    store.open_view()

    async def then() -> None:
        await store.check()
        await store.drop_old()
        await store.check()
        await store.compact()
        assert store.view.horizon == 30
        await store.drop_old()
        await store.check()

    await store.run(then)
    assert len(store.storage.side_names()) == 1


@pytest.mark.parametrize("seed", range(12))
async def test_any_history_leaves_what_the_model_says(store: CompactedStore, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        match rng.choice(["send", "send", "send", "compact", "trim", "crash"]):
            case "send":
                messages: Messages = [
                    (
                        rng.choice(["a", "b", "c", "d", None]),
                        None if rng.random() < 0.2 else b"%d" % rng.randrange(99),
                    )
                    for _ in range(rng.randrange(1, 4))
                ]
                await store.run(partial(store.send, *messages, compressed=rng.random() < 0.5))
            case "compact":
                await store.run(store.compact)
            case "trim":
                await store.run(store.drop_old)
            case "crash":
                store.points.step, store.points.times = rng.choice(STEPS), 1
                store.process.spawn(store.compact())
                await asyncio.sleep(rng.random())
                await store.crash(machine=rng.random() < 0.5)
                store.open_view()
        await store.run(store.check)


async def test_a_crash_while_compactions_are_forgotten_leaves_no_side_log(store: CompactedStore) -> None:
    async def work() -> None:
        await store.send(("a", b"1"))
        await store.compact()
        assert store.storage.side_names()
        await store.log.cursors.delete(COMPACTION)

    await store.run(work)
    await store.crash(machine=True)
    store.open_view()
    await store.run(store.drop_old)
    assert store.view.kept is None
    assert list(store.storage.side_names()) == []


async def test_a_position_behind_the_compacted_part_is_that_of_the_log(store: CompactedStore) -> None:
    async def work() -> None:
        for number in range(3):
            await store.send(("a", b"%d" % number))
        await store.compact()
        await store.send(("b", b"1"))

    await store.run(work)
    last = store.log.extent.position_of(3)
    assert store.view.ordinal_of(last) == 3
    assert store.view.ordinal_of(Position(last.ledger, last.entry + 1)) == 4
