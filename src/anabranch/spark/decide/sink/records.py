"""Interprets the records of a sink: which staged rows count, their numbers, and which are published. Pure.

Tasks stage rows in the sink's row log. A driver that commits a batch appends a *pin* to the record log: these
task attempts are the batch. The first pin of a batch counts, in the order of the record log, so every driver
that reads the log comes to the same result, however many drivers append to it. Pins number the rows of the
sink without gaps, in the order of pins. A *done* record says that all rows below a number are published, and
repeats the result so far, so that older records are no longer needed.

Example: the record log has pin (batch 7, attempts a: 60 rows, b: 40), pin (batch 7, attempts c: 60, d: 40),
done (100), pin (batch 8, attempt e: 50). The first pin makes a and b rows 0 to 99. The second one came from a
driver that was replaced, and does not count. Rows 0 to 99 are published. Batch 8 is pending as rows 100 to
149, and the next commit publishes it, no matter which driver makes that commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from anabranch.errors import CorruptDataError, DataLossError
from anabranch.spark.decide.sink.stored_levels import Marks

SCOPES_MAX = 256
"""Queries and jobs whose batches a sink remembers; the least recently used ones are forgotten."""


class BatchName(NamedTuple):
    """A batch of a sink. Within a scope, such as a query, later batches have higher numbers."""

    scope: str
    number: int


@dataclass(frozen=True, slots=True)
class Pin:
    """Says that a batch consists of the rows of these attempts, which lie in this range of the row log."""

    batch: BatchName
    attempts: Mapping[str, int]
    """Rows of each attempt."""
    start: int
    stop: int
    """The position in the row log after the last row."""
    sink: str
    """A random name for the sink, used if this is its first pin. It changes if the record log is deleted."""
    marks: Mapping[str, Marks] = field(default_factory=dict)
    """For Apache Pulsar: the ends of the active segments before the pin, for each topic of the rows."""
    follows: bool = False
    """Whether the driver had read earlier records; stored because a log on Pulsar does not tell."""

    @property
    def rows(self) -> int:
        return sum(self.attempts.values())


@dataclass(frozen=True, slots=True)
class Done:
    """Says that all rows below `next_number` are published, and sums up all records before `read`."""

    read: int
    next_number: int
    batches: Mapping[str, int]
    sink: str


Record = Pin | Done


def numbered_batch(number: int) -> BatchName:
    """Return the name of a batch that is known only by the number in the option `batchId`."""
    return BatchName("batch", number)


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch that counts, and the number of its first row."""

    pin: Pin
    first_number: int


@dataclass(frozen=True, slots=True)
class SinkState:
    """The result of a record log, read up to but not including position `read`."""

    sink: str = ""
    read: int = 0
    next_number: int = 0
    batches: Mapping[str, int] = field(default_factory=dict)
    """The last batch that counts, by scope; the scope used last comes last."""
    pending: tuple[Pending, ...] = ()
    """Batches that may not be published yet, in order."""
    attempts: Mapping[BatchName, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """The task attempts of the batches whose pins were read."""

    def has(self, batch: BatchName) -> bool:
        """Whether the batch, or a later one of its scope, has a pin that counts."""
        return self.batches.get(batch.scope, -1) >= batch.number

    def is_published(self, batch: BatchName) -> bool:
        """Whether the batch counts and a done record says that it is published."""
        return self.has(batch) and all(one.pin.batch != batch for one in self.pending)

    def done(self) -> Done:
        """Return the record that says that all pending batches are published."""
        return Done(self.read, self.next_number, self.batches, self.sink)


def fold(records: Sequence[tuple[int, Record]], first: int, next_: int) -> SinkState | None:
    """Return the state after these records, which reach without gaps from position `first` to `next_`.

    None means that older records are needed.
    """
    usable = [record for _, record in records if isinstance(record, Done) and record.read >= first]
    if not usable and (first > 0 or _follows_another(records)):
        return None
    state = SinkState()
    if usable:
        base = max(usable, key=lambda done: done.read)
        state = SinkState(base.sink, base.read, base.next_number, base.batches)
    published = state.next_number
    for position, record in records:
        if isinstance(record, Done):
            published = max(published, record.next_number)
        elif position >= state.read:
            state = _pinned(state, record)
    pending = (one for one in state.pending if one.first_number + one.pin.rows > published)
    attempts: dict[BatchName, tuple[str, ...]] = {}
    for _, record in records:
        if isinstance(record, Pin):
            attempts.setdefault(record.batch, tuple(record.attempts))
    return replace(state, read=next_, pending=tuple(pending), attempts=attempts)


def _follows_another(records: Sequence[tuple[int, Record]]) -> bool:
    """Whether the first record says that there were earlier ones."""
    return bool(records) and isinstance(records[0][1], Pin) and records[0][1].follows


def _pinned(state: SinkState, pin: Pin) -> SinkState:
    if state.has(pin.batch):
        return state
    scope, number = pin.batch
    batches = {name: last for name, last in state.batches.items() if name != scope}
    batches[scope] = number
    for name in [*batches][:-SCOPES_MAX]:
        del batches[name]
    return SinkState(
        state.sink or pin.sink,
        state.read,
        state.next_number + pin.rows,
        batches,
        (*state.pending, Pending(pin, state.next_number)),
    )


def check_complete(pending: Pending, rows: int) -> None:
    """Raise DataLossError unless all rows of the batch were found in the row log."""
    if rows != pending.pin.rows:
        scope, number = pending.pin.batch
        raise DataLossError(
            f"the sink staged {pending.pin.rows} rows of batch {number} of {scope}, and {rows} are left in "
            "its row log: the log was trimmed or deleted, or two jobs used one sinkId at the same time"
        )


def encode_record(record: Record) -> bytes:
    """Return a record as it is stored."""
    if isinstance(record, Pin):
        found: dict[str, Any] = {
            "pin": list(record.batch),
            "attempts": dict(record.attempts),
            "rows": [record.start, record.stop],
            "sink": record.sink,
        }
        if record.marks:
            found["marks"] = {topic: list(marks.items()) for topic, marks in record.marks.items()}
        if record.follows:
            found["follows"] = True
    else:
        found = {
            "done": record.next_number,
            "read": record.read,
            "batches": list(record.batches.items()),
            "sink": record.sink,
        }
    return json.dumps({"v": 1, **found}).encode()


def decode_record(data: bytes) -> Record:
    """Return a stored record; raises CorruptDataError if the bytes are not a record of a sink."""
    try:
        found = json.loads(data)
        if found["v"] != 1:
            raise CorruptDataError(f"a record of the sink has version {found['v']}; this version reads 1")
        if "pin" in found:
            (scope, number), (start, stop) = found["pin"], found["rows"]
            marks = {topic: dict(ends) for topic, ends in found.get("marks", {}).items()}
            follows = found.get("follows", False)
            batch = BatchName(scope, number)
            return Pin(batch, found["attempts"], start, stop, found["sink"], marks, follows)
        return Done(found["read"], found["done"], dict(found["batches"]), found["sink"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"a record of the sink cannot be read: {error}") from error
