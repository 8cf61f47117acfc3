"""The compiled steps of a producer do what their Python forms do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch import speedups
from anabranch.client.blocking.outcomes import SendOutcome
from anabranch.client.decide.producing.batcher import OpenBucket, SegmentBatcher, message_size
from anabranch.client.decide.producing.outgoing import STORED, Outgoing
from anabranch.client.options import Batching, PublishOptions
from anabranch.client.produce.futures import complete
from anabranch.client.produce.intake import PlainRows, new_intake
from anabranch.client.produce.memory import Memory
from anabranch.client.produce.preparing import Preparing, largest_size
from anabranch.client.produce.producer import AsyncProducer
from anabranch.client.schema import BYTES
from anabranch.clock import SystemClock
from anabranch.errors import AnabranchError
from anabranch.model.hashing import equal_bucket_splits, key_hash
from anabranch.protocol.compression import Compression
from tests.properties.python_forms import FIRST, python_forms

pytestmark = pytest.mark.skipif(
    speedups.add_rows is None, reason="the package was built without a compiler, or runs from an archive"
)

COMPILED: Any = speedups
COUNTER = speedups.Counter()
KEYS = (
    st.none()
    | st.text(max_size=8)
    | st.binary(max_size=4)
    | st.sampled_from(["k" * size for size in (*range(122, 129), 200)])
)
VALUES = st.binary(max_size=30) | st.sampled_from(
    [bytes(size) for size in (20, 127, 128, 255, 256, 65_535, 65_536)]
)
ROWS = st.lists(st.tuples(VALUES, KEYS), min_size=1, max_size=40)


def built(rows: Sequence[tuple[bytes, Any]], first: int) -> bytes:
    batch = Outgoing(0.0)
    for n, (value, key) in enumerate(rows):
        batch.rows.append((value, key, first + n, 40_503 * n % 65_536))
    batch.build("producer", 1, Compression.NONE, batched=True)
    return batch.entry


@given(rows=ROWS, first=FIRST)
@example(rows=[(bytes(255), "k"), (bytes(256), "k")] * 2, first=0)
@example(rows=[(bytes(65_535), "k"), (bytes(65_536), "k")] * 2, first=0)
@example(rows=[(b"v", "k" * 127)] * 4, first=0)
@example(rows=[(b"v", "k" * 127)] * 4, first=128)
@example(rows=[(b"v", "k" * 127)] * 4, first=2**14)
@example(rows=[(b"v", "k" * 128)] * 4, first=0)
@example(rows=[(b"v", "k"), (b"", "k")] * 1600, first=0)
def test_rows_become_the_same_entry(rows: list[tuple[bytes, Any]], first: int) -> None:
    with python_forms():
        expected = built(rows, first)
    assert built(rows, first) == expected


@given(rows=ROWS, first=FIRST)
def test_packed_rows_are_a_list_of_rows(rows: list[tuple[bytes, Any]], first: int) -> None:
    expected = [(value, key, first + n, 40_503 * n % 65_536) for n, (value, key) in enumerate(rows)]
    packed = COMPILED.PackedRows()
    for row in expected:
        packed.append(row)
    assert list(packed) == expected
    assert (len(packed), packed[0], packed[-1]) == (len(expected), expected[0], expected[-1])
    with pytest.raises(IndexError):
        packed[len(expected)]


@pytest.mark.parametrize(
    "row",
    [
        (bytearray(b"v"), "k", 1, 2),
        (b"v", b"\xff", 1, 2),
        (b"v", "\ud800", 1, 2),
        (b"v", "k", -1, 2),
        (b"v", "k", 1, 65_536),
        (b"v", "k", 1, -1),
    ],
)
def test_unusual_rows_are_left_to_python(row: Any) -> None:
    packed = COMPILED.PackedRows()
    assert packed.encoded() is None
    packed.append((b"v", "k", 0, 2))
    assert packed.encoded() == (b"\0\0\0\x07\x12\x01k\x18\x01\x40\x00v", None, 2, 2)
    packed.append(row)
    packed.append((b"w", "k", 2, 2))
    assert packed.encoded() is None
    assert list(packed) == [(b"v", "k", 0, 2), row, (b"w", "k", 2, 2)]


@pytest.mark.parametrize(
    "row", [(b"v", "k", 1), (b"v", "k", 2**70, 2), (b"v", "k", "1", 2), [b"v", "k", 1, 2]]
)
def test_a_row_of_another_shape_raises(row: Any) -> None:
    with pytest.raises((OverflowError, TypeError)):
        COMPILED.PackedRows().append(row)


class Owner:
    """A segment whose closed batches stay here."""

    def __init__(self, number: int, buckets: int, limits: Batching) -> None:
        self.number = number
        self.batcher = SegmentBatcher(equal_bucket_splits(buckets), limits, self)
        self.closed: list[list[Any]] = []
        self.taken: list[Outgoing] = []

    def begin(self, bucket: OpenBucket) -> Outgoing:
        return self.batcher.begin(bucket, 0.0)

    def close_batches(self) -> None:
        taken = self.batcher.take()
        for number, batch in enumerate(taken):
            batch.count, batch.place, batch.state = (
                len(batch.rows),
                (self.number, len(self.closed), number),
                STORED,
            )
        self.closed.append([(list(batch.rows), batch.trackers) for batch in taken])
        self.taken += taken


class Routes:
    """Two segments; each takes the keys of one half of the ring."""

    def __init__(self, buckets: int, limits: Batching) -> None:
        self.owners = [Owner(number, buckets, limits) for number in range(2)]
        self.by_key: dict[Any, Any] = {}

    def route(self, key: Any) -> tuple[OpenBucket, int, int]:
        hashed = 0 if key is None else key_hash(key)
        batcher = self.owners[hashed >> 16 & 1].batcher
        found = batcher.bucket_for(hashed & 0xFFFF), hashed & 0xFFFF, message_size(b"", key)
        return self.by_key.setdefault(key, found)  # type: ignore[no-any-return]

    def join_open(self, bulk: Any) -> None:
        for owner in self.owners:
            for batch in owner.batcher.opened.values():
                if batch.rows and batch.rows[-1][2] > bulk.after:
                    batch.trackers = [bulk.number]


class Adding:
    """A producer that only adds."""

    def __init__(self, buckets: int, limits: Batching, loop: Any = None) -> None:
        self.routes = Routes(buckets, limits)
        self.counter = speedups.Counter()
        self.counter.last = -1
        self.parts = SimpleNamespace(
            name="me",
            options=PublishOptions(batching=limits),
            memory=Memory(2**20),
            message_bytes_max=2**20,
            loop=loop,
        )
        self.intake = new_intake(
            cast(Any, self.parts), cast(Any, self.routes), self.counter, each_alone=False
        )

    def all_closed(self, runs: list[list[tuple[Any, Any]]]) -> list[Any]:
        """Add each run, and return what the segments sent and where the adding of a run paused."""
        pauses = []
        for number, run in enumerate(runs):
            rows = PlainRows.of([value for value, _ in run], [key for _, key in run])
            bulk: Any = SimpleNamespace(number=number, after=-1)
            while self.intake.add_rows(rows, bulk):
                pauses.append((number, rows.at, self.counter.last))
        for owner in self.routes.owners:
            owner.close_batches()
        return [pauses, *(owner.closed for owner in self.routes.owners)]


@given(
    runs=st.lists(st.lists(st.tuples(st.binary(max_size=20), KEYS), max_size=30), min_size=1, max_size=3),
    buckets=st.sampled_from([1, 3, 9]),
    limits=st.builds(Batching, max_messages=st.integers(1, 12), max_bytes=st.integers(1, 300)),
)
def test_messages_are_added_to_the_same_batches(
    runs: list[list[tuple[bytes, Any]]], buckets: int, limits: Batching
) -> None:
    with python_forms():
        expected = Adding(buckets, limits).all_closed(runs)
    assert Adding(buckets, limits).all_closed(runs) == expected


class Enqueuing(Adding):
    """A producer that takes messages one by one."""

    def __init__(self, limits: Batching, loop: Any) -> None:
        super().__init__(2, limits, loop)
        self.preparing = Preparing(BYTES, SystemClock())
        producer: AsyncProducer[bytes] = AsyncProducer(cast(Any, self))
        self.enqueue: Callable[..., Any] = producer.enqueue

    async def all_sent(self, messages: list[tuple[bytes, Any]]) -> list[Any]:
        """Enqueue each message; return the id of each, and what the segments sent."""
        futures = [await self.enqueue(value, key=key) for value, key in messages]
        for owner in self.routes.owners:
            owner.close_batches()
        ids = [future.result() for future in futures]
        return [ids, self.counter.last, *(owner.closed for owner in self.routes.owners)]


@given(
    messages=st.lists(st.tuples(st.binary(max_size=20), KEYS), max_size=40),
    limits=st.builds(Batching, max_messages=st.integers(1, 12), max_bytes=st.integers(1, 300)),
)
def test_messages_are_enqueued_in_the_same_places(
    messages: list[tuple[bytes, Any]], limits: Batching
) -> None:
    async def sent() -> list[Any]:
        return await Enqueuing(limits, asyncio.get_running_loop()).all_sent(messages)

    with python_forms():
        expected = asyncio.run(sent())
    assert asyncio.run(sent()) == expected


class FromOtherThreads(Enqueuing):
    """A producer whose messages come from the threads of callers."""

    def all_placed(self, runs: list[list[tuple[bytes, Any, bool]]]) -> list[Any]:
        """Take each run; return the id or error of each message, the settled ones, and what was sent."""
        outcomes, settled = [], []
        for run in runs:
            items: deque[Any] = deque()
            for value, key, awaited in run:
                outcome: SendOutcome[Any] = SendOutcome(lambda outcome: None)
                if awaited:
                    outcome.add_done_callback(lambda done: settled.append(done.result()))
                items.append((outcome, value, key))
                outcomes.append(outcome)
            while items:
                self.intake.add_items(items)
        sent = []
        for owner in self.routes.owners:
            owner.close_batches()
            for batch in owner.taken:
                complete(batch)
                sent.append(list(batch.rows))
        return [[outcome.result(0) for outcome in outcomes], settled, sent]


@given(
    runs=st.lists(
        st.lists(st.tuples(st.binary(max_size=20), KEYS, st.sampled_from([False] * 4 + [True])), max_size=30),
        max_size=3,
    ),
    limits=st.builds(Batching, max_messages=st.integers(1, 12), max_bytes=st.integers(1, 300)),
)
def test_messages_of_other_threads_get_the_same_places(
    runs: list[list[tuple[bytes, Any, bool]]], limits: Batching
) -> None:
    async def placed() -> list[Any]:
        return FromOtherThreads(limits, asyncio.get_running_loop()).all_placed(runs)

    with python_forms():
        expected = asyncio.run(placed())
    assert asyncio.run(placed()) == expected


PLAIN_VALUES = st.lists(st.binary(max_size=5) | st.just(bytearray(b"v")), max_size=5)


@given(values=PLAIN_VALUES, keys=st.none() | st.lists(KEYS | st.just(1) | st.just("\ud800"), max_size=5))
def test_many_messages_are_checked_alike(values: list[bytes], keys: list[Any] | None) -> None:
    def prepared() -> object:
        try:
            return Preparing(BYTES, SystemClock()).many(values, keys), largest_size(values)
        except (AnabranchError, TypeError) as error:
            return type(error), str(error)

    with python_forms():
        expected = prepared()
    assert prepared() == expected


def test_messages_without_keys_and_of_other_types_are_added() -> None:
    adding = Adding(1, Batching(max_messages=3))
    pauses, (first, last), _ = adding.all_closed(
        [[(value, None) for value in (b"a", bytearray(b"b"), b"c", b"d")]]
    )
    assert [[bytes(row[0]) for row in batch] for batch, _ in (*first, *last)] == [[b"a", b"b", b"c"], [b"d"]]
    assert pauses == [(0, 3, 2)]


@pytest.mark.parametrize(
    "arguments",
    [
        ({}, [b"v"], ["k"], -1, COUNTER),
        ({}, [b"v"], "k", 0, COUNTER),
        ({}, (b"v",), None, 0, COUNTER),
        ({}, [b"v"], None, 2**70, COUNTER),
        ({}, [b"v"], None, 0, 0),
    ],
)
def test_wrong_arguments_raise(arguments: Any) -> None:
    with pytest.raises((TypeError, OverflowError)):
        COMPILED.add_rows(*arguments)
