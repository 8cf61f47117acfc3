"""Which batches of a sink count, their numbers, and what is left to publish."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import CorruptDataError, DataLossError
from anabranch.spark.decide.sink.records import (
    SCOPES_MAX,
    BatchName,
    Done,
    Pending,
    Pin,
    Record,
    SinkState,
    check_complete,
    decode_record,
    encode_record,
    fold,
)


def pin(batch: int, attempt: str, rows: int = 10, scope: str = "q", sink: str = "s") -> Pin:
    return Pin(BatchName(scope, batch), {attempt: rows}, 0, 100, sink)


def read(*records: Record) -> SinkState:
    state = fold(list(enumerate(records)), 0, len(records))
    assert state is not None
    return state


def test_an_empty_log_has_no_batch() -> None:
    assert fold([], 0, 0) == SinkState()


def test_the_first_pin_of_a_batch_counts() -> None:
    state = read(pin(0, "first", sink="a"), pin(0, "second", sink="b"), pin(1, "third"))
    assert [(one.pin.attempts, one.first_number) for one in state.pending] == [
        ({"first": 10}, 0),
        ({"third": 10}, 10),
    ]
    assert (state.sink, state.next_number, state.read) == ("a", 20, 3)


def test_a_batch_behind_a_later_one_does_not_count() -> None:
    state = read(pin(4, "a"), pin(3, "b"))
    assert [one.pin.attempts for one in state.pending] == [{"a": 10}]
    assert state.has(BatchName("q", 3))
    assert not state.has(BatchName("q", 5))
    assert not state.has(BatchName("other", 0))


def test_a_done_record_ends_the_batches_before_it() -> None:
    state = read(pin(0, "a"))
    after = read(pin(0, "a"), state.done())
    assert (after.pending, after.next_number) == ((), 10)
    assert after.has(BatchName("q", 0))


def test_a_pin_between_the_reading_and_the_done_record_stays_pending() -> None:
    seen = read(pin(0, "a"))
    state = read(pin(0, "a"), pin(1, "b"), seen.done())
    assert [(one.pin.attempts, one.first_number) for one in state.pending] == [({"b": 10}, 10)]


def test_a_late_done_record_of_an_older_driver_takes_nothing_back() -> None:
    old = read(pin(0, "a")).done()
    new = read(pin(0, "a"), old, pin(1, "b")).done()
    state = read(pin(0, "a"), old, pin(1, "b"), new, old)
    assert (state.pending, state.next_number) == ((), 20)
    assert state.has(BatchName("q", 1))


def test_older_records_are_not_needed_behind_a_done_record() -> None:
    records: list[Record] = [pin(0, "a", sink="x"), pin(0, "b")]
    records += [read(*records).done(), pin(1, "c")]
    assert fold(list(enumerate(records))[2:], 2, 4) == read(*records)
    assert fold(list(enumerate(records))[3:], 3, 4) is None


def test_a_batch_without_rows_counts_and_leaves_nothing_to_publish() -> None:
    state = read(pin(7, "a", rows=0))
    assert state.pending == ()
    assert state.has(BatchName("q", 7))


def test_scopes_unused_for_longest_are_forgotten() -> None:
    records: list[Record] = [pin(0, "a", scope=f"q{n}") for n in range(SCOPES_MAX + 1)]
    state = read(*records)
    assert not state.has(BatchName("q0", 0))
    assert state.has(BatchName("q1", 0))


def test_missing_rows_are_an_error() -> None:
    check_complete(Pending(pin(0, "a"), 0), 10)
    with pytest.raises(DataLossError, match="10 rows of batch 0 of q, and 9 are left"):
        check_complete(Pending(pin(0, "a"), 0), 9)


def test_a_log_whose_first_pin_follows_another_record_has_lost_records() -> None:
    later = replace(pin(1, "b"), follows=True)
    assert fold([(7, later)], 0, 8) is None
    assert fold([(5, pin(0, "a")), (7, later)], 0, 8) is not None
    done = Done(6, 10, {"q": 0}, "s")
    assert fold([(6, done), (7, later)], 0, 8) is not None


def test_pins_of_our_own_brokers_are_stored_as_before() -> None:
    assert json.loads(encode_record(pin(3, "a"))) == {
        "v": 1,
        "pin": ["q", 3],
        "attempts": {"a": 10},
        "rows": [0, 100],
        "sink": "s",
    }


def test_records_come_back_as_they_were() -> None:
    marked = replace(pin(4, "b"), marks={"orders": {0: 2**62, 7: 3}}, follows=True)
    for record in (pin(3, "a"), marked, Done(7, 30, {"b": 2, "a": 1}, "s")):
        assert decode_record(encode_record(record)) == record
    for damaged in (b"", b"{}", b"[1]", b'{"v": 2}', b'{"v": 1, "pin": 3}'):
        with pytest.raises(CorruptDataError):
            decode_record(damaged)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_every_driver_reads_the_same_numbers_from_any_start(seed: int) -> None:
    """Drivers append pins and done records that rest on anything they read before; all of them agree."""
    rng = Random(seed)
    records: list[Record] = []
    published = 0
    for number in range(rng.randint(1, 25)):
        seen = read(*records[: rng.randint(0, len(records))])
        if rng.random() < 0.6:
            records.append(pin(rng.randint(0, 6), str(number), rng.randint(0, 5), rng.choice("pq")))
        elif seen.sink:
            records.append(seen.done())
            published = max(published, seen.next_number)
    whole = read(*records)
    assert whole.next_number - sum(one.pin.rows for one in whole.pending) <= published
    for one in whole.pending:
        assert one.first_number + one.pin.rows > published
    for first in range(len(records) + 1):
        part = fold(list(enumerate(records))[first:], first, len(records))
        assert part is None or part == whole
