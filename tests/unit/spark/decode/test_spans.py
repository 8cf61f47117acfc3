from __future__ import annotations

import random
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.protocol.entry.batches import MessageBatch
from anabranch.spark.decode.entries import Payload, open_entry
from anabranch.spark.decode.message_headers import HeaderFields
from anabranch.spark.decode.spans import find_spans, follow
from anabranch.spark.decode.usual_headers import REACH_BYTES, read_usual

LIMIT = 2**24


def batch(values: list[bytes], keys: list[str | None], first_sequence_id: int = 0) -> bytes:
    built = MessageBatch()
    for number, (value, key) in enumerate(zip(values, keys, strict=True)):
        built.add(value, key, first_sequence_id + number)
    return built.build("p", 1234)


def read_back(entries: list[bytes]) -> list[tuple[bytes | None, bytes]]:
    spans = find_spans([open_entry(entry, LIMIT) for entry in entries])
    columns = zip(
        spans.key_starts,
        spans.key_ends,
        spans.no_key,
        spans.header_ends,
        spans.value_ends,
        strict=True,
    )
    return [
        (None if none else spans.raw[key:key_end], spans.raw[value:end])
        for key, key_end, none, value, end in columns
    ]


def test_a_zero_before_a_header_does_not_hide_the_header() -> None:
    # The value's last byte and the header's size make another candidate, one byte before the real one. With
    # these keys the size is a first tag: 18 of a key, 24 of a payload size, 10 of properties.
    for key in ("key-12345678", "key-12345678901234", "k-12"):
        values = [b"x" * (number % 7) + b"\0" for number in range(1000)]
        keys: list[str | None] = [key] * 1000
        for first in (0, 1000, 10**6, 2**40):
            expected = [(key.encode(), value) for value in values]
            assert read_back([batch(values, keys, first)]) == expected


def test_values_may_be_batches_themselves() -> None:
    inner = open_entry(batch([b"v" * 20] * 30, [f"k{n}" for n in range(30)]), LIMIT).data
    values = [bytes(inner), b"", bytes(inner)[:-1], bytes(inner) + b"\0"] * 5
    keys: list[str | None] = ["key", None] * 10
    expected = [(None if key is None else key.encode(), v) for key, v in zip(keys, values, strict=True)]
    assert read_back([batch(values, keys), batch(values, keys)]) == expected * 2


def test_random_rows_are_found_in_one_pass_over_many_entries() -> None:
    rng = random.Random(5)
    rows = [(f"key-{rng.randrange(10**5)}", rng.randbytes(100)) for _ in range(20_000)]
    entries = [
        batch([value for _, value in rows[at : at + 500]], [key for key, _ in rows[at : at + 500]], at)
        for at in range(0, len(rows), 500)
    ]
    assert read_back(entries) == [(key.encode(), value) for key, value in rows]


@given(st.integers(0, 200), st.sampled_from([0, 1, 127, 128, 16383, 16384]), st.integers(0, 2**62))
def test_every_length_of_key_payload_and_sequence_id_is_read(key: int, size: int, sequence: int) -> None:
    rows: list[tuple[str | None, bytes]] = [("k" * key, bytes(size)), (None, b"x")]
    found = read_back([batch([value for _, value in rows], [name for name, _ in rows], sequence)])
    assert found == [(None if name is None else name.encode(), value) for name, value in rows]


SMALL = st.sampled_from([0, 0, 0, 1, 2, 6, 0x12, 0x18, 0x40, 0x80, 0x81, 0x28, 0x0A])


@settings(max_examples=150)
@given(st.lists(SMALL, min_size=5, max_size=60))
def test_a_header_of_the_usual_shape_is_read_as_by_the_general_reader(body: list[int]) -> None:
    total = len(body)
    data = np.frombuffer(bytes(body) + bytes(REACH_BYTES), np.uint8)
    starts = np.arange(total - 4, dtype=np.int64)
    usual = read_usual(data, starts, total)
    rows = np.flatnonzero(usual.value_ends >= 0)
    begins, ends = starts[rows] + 4, usual.header_ends[rows]
    fields = HeaderFields(data, begins, ends, ends <= total)
    fields.read()
    assert fields.sound.all()
    assert (ends + fields.payload_size).tolist() == usual.value_ends[rows].tolist()
    assert fields.no_key.tolist() == usual.no_key[rows].tolist()
    assert fields.key_starts.tolist() == usual.key_starts[rows].tolist()
    assert fields.key_ends.tolist() == usual.key_ends[rows].tolist()
    assert fields.event_times.tolist() == usual.event_times[rows].tolist()


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.integers(-1, 20)), max_size=20), st.data())
def test_following_finds_the_one_way_from_start_to_end(
    gaps: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    at, starts = 0, []
    for gap, *_ in gaps:
        starts.append(at)
        at += gap
    total = at
    known = {start: row for row, start in enumerate(starts)}
    # An end is the next start, an arbitrary later offset, or -1.
    ends = [
        (starts[row + 1] if row + 1 < len(starts) else total)
        if honest
        else (start + 1 + far if far >= 0 and start + 1 + far <= total else -1)
        for row, (start, (_, honest, far)) in enumerate(zip(starts, gaps, strict=True))
    ]
    way: list[int] | None = []
    offset = 0
    while way is not None and offset != total:
        row = known.get(offset, -1)
        way = None if row < 0 or ends[row] < 0 else [*way, row]
        offset = ends[row]
    count = data.draw(st.integers(0, 21)) if way is None else len(way)
    found = follow(np.array(starts, np.int64), np.array(ends, np.int64), count, total)
    if found is None:
        assert way is None or count == 0 != total
        return
    assert way is not None
    assert np.arange(len(starts))[found].tolist() == way
    assert follow(np.array(starts, np.int64), np.array(ends, np.int64), count + 1, total) is None


def test_no_messages_in_no_bytes_are_no_rows() -> None:
    assert len(find_spans([Payload(b"", 0, 0)]).value_ends) == 0


@given(st.lists(st.integers(0, 2**49), min_size=1, max_size=20))
def test_sequence_ids_are_read_when_asked_for(sequences: list[int]) -> None:
    built = MessageBatch()
    for number in sequences:
        built.add(b"\xff\x80", "k", number)
    spans = find_spans([open_entry(built.build("p", 1), LIMIT)])
    assert spans.sequence_ids().tolist() == sequences


@given(st.lists(st.sampled_from([0, 1, 2**35, 2**41 + 17, 2**42 - 1, 2**42, 1_700_000_000_000]), min_size=1))
def test_event_times_of_every_length_are_read(times: list[int]) -> None:
    built = MessageBatch()
    for number, time_ms in enumerate(times):
        built.add(b"v" * 90, None if number % 3 == 0 else "k", number, event_time_ms=time_ms)
    spans = find_spans([open_entry(built.build("p", 1), LIMIT)])
    assert spans.event_times_ms.tolist() == times
    assert spans.sequence_ids().tolist() == list(range(len(times)))


def test_a_way_with_another_number_of_messages_is_refused() -> None:
    # Rows 1 and 3 lie inside the values of rows 0 and 2; row 3 even ends where the bytes end.
    starts, ends = np.array([0, 3, 8, 12]), np.array([8, -1, 20, 20])
    assert np.arange(4)[follow(starts, ends, 2, 20)].tolist() == [0, 2]
    for count in (1, 3, 4):
        assert follow(starts, ends, count, 20) is None
    assert follow(starts, ends, 2, 21) is None


def test_messages_of_all_usual_shapes_are_read_at_once() -> None:
    built = MessageBatch()
    for number, (key, size, time_ms) in enumerate(
        product(["k" * 127, "k", "", None], [0, 127, 128, 16383], [0, 1_700_000_000_000])
    ):
        built.add(b"v" * size, key, number * 10**10, event_time_ms=time_ms)
    payload = open_entry(built.build("p", 1), LIMIT)
    spans = find_spans([payload])
    data = np.frombuffer(bytes(payload.data) + bytes(REACH_BYTES), np.uint8)
    usual = read_usual(data, spans.header_starts - 4, len(payload.data))
    assert usual.value_ends.tolist() == spans.value_ends.tolist()
    assert usual.event_times.tolist() == [0, 1_700_000_000_000] * 16
