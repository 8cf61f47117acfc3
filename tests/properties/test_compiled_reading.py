"""The compiled steps of a consumer do what their Python forms do."""

from __future__ import annotations

import gc
import sys
from struct import pack
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from anabranch import speedups
from anabranch.client.message import Message, again, messages_of
from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.model.ids import MessageId
from anabranch.protocol.entry.columns import Columns
from anabranch.protocol.entry.entries import decode_columns, open_entry
from anabranch.protocol.frames import build_entry
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.spark.decode.entries import Payload
from anabranch.spark.decode.spans import Spans, find_spans
from tests.properties.python_forms import python_forms
from tests.properties.raw_batches import BATCHES, LIES

pytestmark = pytest.mark.skipif(
    speedups.add_rows is None, reason="the package was built without a compiler, or runs from an archive"
)

COMPILED: Any = speedups


def read(entry: bytes) -> Columns | type[AnabranchError]:
    try:
        found = decode_columns(entry, 2**20)
        # These columns are read on first use.
        assert len(found.keys) == len(found.sequence_ids) == found.count
        return found
    except AnabranchError as error:
        return type(error)


def contents(found: Columns | type[AnabranchError]) -> object:
    if isinstance(found, type):
        return found
    assert not found.properties
    times = found.event_times or [0] * found.count
    return found.values, found.keys, found.sequence_ids, times, list(found.batch_indexes), found.batch_size


@settings(max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
@given(batch=BATCHES, cut=LIES, count=LIES)
@example(batch=[pack(">I", 15) + b"\x18\x00\x40" + b"\x81" * 11 + b"\x01"], cut=0, count=0)
@example(batch=[pack(">I", 4) + b"\x18\x01\x40\x01"], cut=0, count=0)
@example(batch=[pack(">I", 100) + b"\x18\x00\x40\x01"], cut=0, count=0)
@example(batch=[pack(">I", 6) + b"\x12\x09\x18\x00\x40\x01"], cut=0, count=0)
def test_a_batch_is_read_alike(batch: list[bytes], cut: int, count: int) -> None:
    payload = b"".join(batch)
    payload = payload[: len(payload) - max(0, cut)]
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=7, publish_time=1, num_messages_in_batch=max(1, len(batch) + count)
    )
    entry = build_entry(metadata.SerializeToString(), payload)
    with python_forms():
        expected = contents(read(entry))
    assert contents(read(entry)) == expected
    held = open_entry(entry, 2**20).surely_holds(metadata.num_messages_in_batch)
    assert held == (COMPILED.split_messages(payload, 0, metadata.num_messages_in_batch) is not None)


def spans_of(payloads: list[Payload]) -> object:
    try:
        spans = find_spans(payloads)
    except AnabranchError as error:
        return type(error)
    taken = {
        name: getattr(spans, name) for name in Spans.__slots__ if name not in ("raw", "data", "sequences")
    }
    # The place of a missing key means nothing.
    keys = [
        None if none else pair
        for none, *pair in zip(
            taken.pop("no_key"), taken.pop("key_starts"), taken.pop("key_ends"), strict=True
        )
    ]
    return keys, spans.sequence_ids().tolist(), {name: column.tolist() for name, column in taken.items()}


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(BATCHES, LIES, LIES), min_size=1, max_size=3))
def test_spark_finds_the_same_messages(batches: list[tuple[list[bytes], int, int]]) -> None:
    payloads = []
    for batch, cut, count in batches:
        joined = b"".join(batch)
        payloads.append(Payload(joined[: len(joined) - max(0, cut)], max(0, len(batch) + count), 1))
    with python_forms():
        expected = spans_of(payloads)
    assert spans_of(payloads) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", [1], [], np.empty((6, 1), np.int64)),
        (b"", [1], [0], np.empty(5, np.int64)),
        (b"", [1], [0], np.empty((6, 1), np.int32)),
        (b"", [1], [0], b""),
        (b"", ["1"], [0], np.empty((6, 1), np.int64)),
    ],
)
def test_wrong_columns_are_refused(arguments: Any) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        COMPILED.find_messages(*arguments)


@pytest.mark.parametrize(
    ("count", "end"), [(2, 8), (2, 16), (1, 9), (1, -1), (-1, 8), (2**40, 8), (0, 8), (0, 0)]
)
def test_counts_and_ends_that_do_not_fit_find_nothing(count: int, end: int) -> None:
    message = pack(">I", 4) + b"\x18\x00\x40\x01"
    assert COMPILED.find_messages(message, [1], [8], np.empty((6, 1), np.int64))
    assert not COMPILED.find_messages(message * 2, [count], [end], np.empty((6, 1), np.int64))


@given(st.binary(max_size=60), st.integers(-1, 70), st.integers(-1, 12))
def test_any_bytes_can_be_split(payload: bytes, start: int, count: int) -> None:
    found = COMPILED.split_messages(payload, start, count)
    assert COMPILED.holds_messages(payload, start, count) == (found is not None)
    if found is not None:
        starts, values = found
        assert len(starts) == len(values) == count
        assert starts[0] == start
        assert payload.endswith(values[-1])


class ToyEntry:
    """An entry with values; it is decoded when its messages are first used, or cannot be decoded."""

    position, batch_size, redelivery_count, segment_id = (1, 2), 3, 0, 4

    def __init__(self, values: list[bytes | None] | None) -> None:
        self.source: Any = self
        self.values = values
        self.content: ToyEntry | None = None

    def columns(self) -> ToyEntry:
        if self.values is None:
            raise CorruptDataError("damaged")
        self.content = self
        return self

    def vector(self, number: int) -> tuple[Any, ...]:
        return ((number, None),)


def parts(messages: list[Message[Any]]) -> list[tuple[MessageId, int]]:
    """The index, the number and the retries of each message, as an application sees them."""
    return [(message.id, message.redelivery_count) for message in messages]


@given(st.integers(0, 20).map(range) | st.lists(st.integers(0, 2**40)), st.integers(20, 2**62))
def test_messages_are_made_alike(indexes: range | list[int], last: int) -> None:
    entry: Any = ToyEntry([])
    with python_forms():
        expected = parts(messages_of(entry, indexes, last))
    made = messages_of(entry, indexes, last)
    assert parts(made) == expected
    assert [found for _, found in parts([again(again(message)) for message in made])] == [2] * len(made)


@given(st.lists(st.none() | st.binary(max_size=3)), st.integers(-3, 5))
def test_the_data_of_a_message_is_that_of_its_place(values: list[bytes | None], index: int) -> None:
    entry: Any = ToyEntry(values)
    message: Message[bytes] = Message(entry, index, 1)
    for _ in range(2):
        try:
            expected: bytes | type[Exception] = values[index] or b""
        except IndexError:
            expected = IndexError
        if isinstance(expected, bytes):
            assert message.data == expected
        else:
            with pytest.raises(expected):
                message.data  # noqa: B018 - reading it is the point


def test_the_data_of_a_damaged_entry_raises() -> None:
    entry: Any = ToyEntry(None)
    with pytest.raises(CorruptDataError):
        Message(entry, 0, 1).data  # noqa: B018 - reading it is the point


@pytest.mark.parametrize(
    "arguments",
    [(object, None, 1, 1), (Message, None, -1, 1), (Message, None, "1", 1), (Message, None, ["1"], 1)],
)
def test_messages_of_wrong_types_are_refused(arguments: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        COMPILED.make_messages(*arguments)


def test_the_collector_does_not_visit_messages() -> None:
    entry: Any = ToyEntry([b"a"])
    before = sys.getrefcount(entry)
    messages = messages_of(entry, range(100), 100)
    assert not any(map(gc.is_tracked, messages))
    assert sys.getrefcount(entry) == before + 100
    del messages
    assert sys.getrefcount(entry) == before
