"""Turns stored entries into Arrow batches of exactly the types that Spark derives from the requested schema.

Entries are collected until a batch is large enough, and then decoded together: a few passes of numpy or of
compiled code over all their bytes, instead of Python code per message. There are two ways. If only keys,
values and what the entry itself tells are wanted, and all messages belong to the task, `pieces.copied` copies
keys and values in one compiled pass. Otherwise `spans` finds the offsets of all parts, and the columns are
built from those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from anabranch.errors import AnabranchError, CorruptDataError
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.spark.columns import Flags, Numbers, binary_column, number_column, repeated_text
from anabranch.spark.decide.source.topology import Slice
from anabranch.spark.decode.entries import Payload
from anabranch.spark.decode.pieces import Copied, EntryPiece, copied, decoded_key, key_hashes
from anabranch.spark.decode.spans import Spans, find_spans

if TYPE_CHECKING:
    from anabranch.spark.values.value_columns import ValueColumns

_TIME_MS_MAX = 2**63 // 1000 - 1
"""Latest time in milliseconds that fits a column of microseconds."""

ReportBad = Callable[[Slice, int, AnabranchError], None]
"""Called with the slice, the first position and the fault of an entry that cannot be decoded."""

BATCH_ROWS = 10_000
BATCH_BYTES = 4 * 2**20


def arrow_schema(schema: Any) -> Any:
    return to_arrow_schema(schema, timezone="UTC")


class RowBuilder:
    """Collects entries of one topic and turns them into Arrow batches."""

    def __init__(
        self,
        schema: Any,
        topic: str,
        report_bad: ReportBad | None = None,
        values: ValueColumns | None = None,
    ) -> None:
        """Without `report_bad`, an entry that cannot be decoded raises CorruptDataError.

        With `values`, the value column is decoded instead of left as bytes.
        """
        self._schema = arrow_schema(schema)
        self._report_bad = report_bad
        self._values = values
        by_spans: dict[str, Callable[[Any], Any]] = {**_BUILDERS_BY_SPANS}
        by_spans["headers"] = lambda rows: _headers(rows, self._schema.field("headers").type)
        self._builders = {**_BUILDERS, **by_spans}
        self._copies = not by_spans.keys() & set(self._schema.names)
        self.topic = topic
        self._pieces: list[EntryPiece] = []
        self._rows = 0
        self._bytes = 0

    @property
    def full(self) -> bool:
        return self._rows >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, payload: Payload, first: int, part: Slice, keep: tuple[HashRange, ...] | None) -> None:
        """Add the messages of an entry that lie in the slice; `first` is the position of its first message.

        With `keep`, only keys in these parts of the segment's range become rows.
        """
        piece = EntryPiece(payload, first, part, keep)
        if piece.take > 0:
            self._pieces.append(piece)
            self._rows += piece.take
            self._bytes += len(payload.data)

    def take(self) -> Any:
        """Return a batch of the rows since the last call, or None if filtering leaves no row."""
        pieces, self._pieces = self._pieces, []
        self._rows = self._bytes = 0
        if not pieces:
            return None
        if self._copies and (columns := copied(pieces)) is not None:
            return self._batch(_CopiedRows(self.topic, pieces, columns))
        try:
            spans = find_spans([piece.payload for piece in pieces])
        except CorruptDataError:
            # One bad entry spoils the joined bytes, so the entries are tried one by one to find it.
            pieces = [piece for piece in pieces if self._is_sound(piece)]
            spans = find_spans([piece.payload for piece in pieces])
        rows = _FoundRows(self.topic, pieces, spans)
        return None if rows.count == 0 else self._batch(rows)

    def _batch(self, rows: _EntryRows) -> Any:
        decoded = {} if self._values is None else self._values.of(rows.values(), *rows.versions(), rows.place)
        columns = [
            decoded[name] if name in decoded else self._builders[name](rows) for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _is_sound(self, piece: EntryPiece) -> bool:
        """Return whether an entry can be decoded, and report it if not."""
        try:
            find_spans([piece.payload])
        except CorruptDataError as error:
            if self._report_bad is None:
                raise
            self._report_bad(piece.part, piece.first, error)
            return False
        return True


class _EntryRows:
    """The messages of one batch; all of them become rows unless a subclass picks some."""

    def __init__(self, topic: str, pieces: list[EntryPiece]) -> None:
        self.topic = topic
        self._pieces = pieces
        self._counts = np.array([piece.payload.count for piece in pieces], np.int64)
        self._picked: Any = None
        """The indexes of the messages that become rows; None for all."""

    def keys(self) -> Any:
        raise NotImplementedError

    def values(self) -> Any:
        raise NotImplementedError

    def _within_entry(self) -> Numbers:
        """Return the index of each message in its entry."""
        firsts = np.cumsum(self._counts) - self._counts
        return np.arange(int(self._counts.sum()), dtype=np.int64) - np.repeat(firsts, self._counts)

    def _of_entry(self, values: list[int]) -> Numbers:
        return np.repeat(np.array(values, np.int64), self._counts)

    def pick(self, column: Any) -> Any:
        return column if self._picked is None else column[self._picked]

    @property
    def count(self) -> int:
        return int(self._counts.sum()) if self._picked is None else len(self._picked)

    def segments(self) -> Any:
        return self.pick(self._of_entry([piece.part.segment for piece in self._pieces]))

    def positions(self) -> Any:
        first = self._of_entry([piece.first for piece in self._pieces])
        return self.pick(first + self._within_entry())

    def producers(self) -> Any:
        names = pa.array([_text(piece.payload.producer) for piece in self._pieces], pa.string())
        of_row = self.pick(self._of_entry(list(range(len(self._pieces)))))
        return names.take(number_column(of_row, pa.int64()))

    def versions(self) -> tuple[list[bytes], Any]:
        """Return the distinct schema versions of the entries, and the index of each row's version."""
        distinct = sorted({piece.payload.schema_version for piece in self._pieces})
        index = {version: number for number, version in enumerate(distinct)}
        of_entry = [index[piece.payload.schema_version] for piece in self._pieces]
        return distinct, self.pick(self._of_entry(of_entry))

    def place(self, row: int) -> str:
        """Describe a row for an error text."""
        return f"position {self.positions()[row]} of segment {self.segments()[row]} of topic {self.topic}"

    def publish_times_ms(self) -> Any:
        return self.pick(self._of_entry([piece.payload.publish_time_ms for piece in self._pieces]))


class _CopiedRows(_EntryRows):
    """Messages whose keys and values are already columns."""

    def __init__(self, topic: str, pieces: list[EntryPiece], columns: Copied) -> None:
        super().__init__(topic, pieces)
        self._columns = columns

    def keys(self) -> Any:
        return self._columns.keys

    def values(self) -> Any:
        return self._columns.values


class _FoundRows(_EntryRows):
    """Messages with spans in the joined payloads; those that belong to other tasks are left out."""

    def __init__(self, topic: str, pieces: list[EntryPiece], spans: Spans) -> None:
        super().__init__(topic, pieces)
        self.spans = spans
        wanted = ~spans.compacted
        if any(piece.is_cut for piece in pieces):
            skip = self._of_entry([piece.skip for piece in pieces])
            within = self._within_entry()
            wanted &= (within >= skip) & (within < skip + self._of_entry([p.take for p in pieces]))
        if not all(piece.is_whole for piece in pieces):
            # One call for all rows: a call per entry would be slow if each entry holds one row.
            hashes = key_hashes(spans)
            for piece, end in zip(pieces, np.cumsum(self._counts).tolist(), strict=True):
                if not piece.is_whole:
                    rows = slice(end - piece.payload.count, end)
                    wanted[rows] &= piece.owns(hashes[rows])
        if not wanted.all():
            self._picked = np.flatnonzero(wanted)

    def keys(self) -> Any:
        spans = self.spans
        column = binary_column(
            spans.raw, self.pick(spans.key_starts), self.pick(spans.key_ends), self.pick(spans.no_key)
        )
        encoded = self.pick(spans.encoded_key)
        if not encoded.any():
            return column
        keys = column.to_pylist()
        for row in np.flatnonzero(encoded).tolist():
            keys[row] = None if keys[row] is None else decoded_key(keys[row])
        return pa.array(keys, pa.binary())

    def values(self) -> Any:
        spans = self.spans
        return binary_column(
            spans.raw, self.pick(spans.header_ends), self.pick(spans.value_ends), self.pick(spans.no_value)
        )

    def sequences(self) -> Numbers:
        own = self.spans.sequence_ids()
        counted = self._of_entry([piece.payload.consecutive for piece in self._pieces]) | (own < 0)
        firsts = self._of_entry([piece.payload.first_sequence for piece in self._pieces])
        found: Numbers = np.where(counted, firsts + self._within_entry(), own)
        return found


def _time_column(times_ms: Numbers, missing: Flags | None) -> Any:
    times_us = np.minimum(times_ms, _TIME_MS_MAX) * 1000
    return number_column(times_us, pa.timestamp("us", "UTC"), missing)


def _event_times(rows: _FoundRows) -> Any:
    times = rows.pick(rows.spans.event_times_ms)
    return _time_column(times, times == 0)


def _hashes(rows: _FoundRows) -> Any:
    hashes = rows.pick(key_hashes(rows.spans))
    return number_column(hashes, pa.int32(), rows.pick(rows.spans.no_key))


def _sequences(rows: _FoundRows) -> Any:
    sequences = rows.pick(rows.sequences())
    return number_column(sequences, pa.int64(), sequences < 0)


def _headers(rows: _FoundRows, kind: Any) -> Any:
    """Return the headers column. It is built row by row, because properties are rare."""
    spans = rows.spans
    starts, ends = rows.pick(spans.header_starts), rows.pick(spans.header_ends)
    lists: list[list[dict[str, Any]]] = [[]] * rows.count
    for row in np.flatnonzero(rows.pick(spans.properties)).tolist():
        header = pb.SingleMessageMetadata.FromString(spans.raw[starts[row] : ends[row]])
        lists[row] = [{"key": _text(pair.key), "value": _raw(pair.value)} for pair in header.properties]
    return pa.array(lists, kind)


def _raw(text: str | bytes) -> bytes:
    # Protobuf returns bytes for text that is not UTF-8.
    return text if isinstance(text, bytes) else text.encode()


def _text(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode(errors="replace")


_BUILDERS: Mapping[str, Callable[[_EntryRows], Any]] = {
    "key": lambda rows: rows.keys(),
    "value": lambda rows: rows.values(),
    "topic": lambda rows: repeated_text(rows.topic, rows.count),
    "segment": lambda rows: number_column(rows.segments(), pa.int64()),
    "position": lambda rows: number_column(rows.positions(), pa.int64()),
    "timestamp": lambda rows: _time_column(rows.publish_times_ms(), None),
    "producer": lambda rows: rows.producers(),
}
_BUILDERS_BY_SPANS: Mapping[str, Callable[[_FoundRows], Any]] = {
    "eventTime": _event_times,
    "keyHash": _hashes,
    "sequence": _sequences,
}
"""The columns that need more of a header than its key."""
