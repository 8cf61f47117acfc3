"""Reads the entries of one task and turns them into Arrow batches.

Only the processes of tasks load this module. Spark starts a new planning process for each query, which does
without it and so starts faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from anabranch.errors import (
    AnabranchError,
    BadEntryError,
    ChecksumError,
    CompressionError,
    CorruptDataError,
)
from anabranch.model.ranges import HashRange
from anabranch.spark.decide.source.partitions import Partition
from anabranch.spark.decide.source.topology import Sizes, Slice
from anabranch.spark.decode.entries import open_entry
from anabranch.spark.decode.rows import RowBuilder, arrow_schema
from anabranch.spark.options.queries import BadEntries
from anabranch.spark.source.query import PlannedPartition, SourceQuery, log
from anabranch.spark.topics import StoredEntry, TopicReader

if TYPE_CHECKING:
    # Imported late: few queries decode values.
    from anabranch.spark.values.value_columns import ValueColumns

PAYLOAD_BYTES_MAX = 64 * 2**20
"""Most bytes that one entry may unpack to."""

SAMPLED_SEGMENTS = 16
"""Segments whose message size is measured per plan; their mean stands for the others."""

_BAD = (ChecksumError, CompressionError, CorruptDataError)
"""Errors of a bad entry, which badEntries=skip skips. An encrypted entry is not bad, and fails the query."""


def read_partition(query: SourceQuery, partition: InputPartition) -> Iterator[Any]:
    """Yield Arrow batches of the strands of one task, in their order."""
    # If a reader plans no partition, Spark makes an empty one of its own type.
    if isinstance(partition, PlannedPartition):
        yield from PartitionRows(query, partition.strands).batches()


class PartitionRows:
    """The rows of the strands that one task reads."""

    def __init__(self, query: SourceQuery, strands: Partition) -> None:
        self._query = query
        self._strands = strands

    def batches(self) -> Iterator[Any]:
        """Yield Arrow batches of the strands, in their order."""
        steps = [(part, strand.ranges_for(part)) for strand in self._strands for part in strand.slices]
        expected = [part.lo for part, _ in steps]
        slices = [part for part, _ in steps]
        written_by = self._schema_topics(slices)
        builder: RowBuilder | None = None
        source: tuple[str, str] | None = None
        bad = BadEntryReport(self._query.options.bad_entries)
        for step, entries in self._query.service.reader().read(slices, self._query.options.poll_timeout_s):
            part, keep = steps[step]
            if builder is None or source != (part.topic, written_by[step]):
                yield from _finished(builder)
                source = part.topic, written_by[step]
                builder = RowBuilder(self._query.schema, part.topic, bad.add, self._value_columns(*source))
            for entry in entries:
                self._check_gap(part, expected[step], entry)
                expected[step] = entry.first + entry.positions
                bad.add_to(builder, entry, part, keep)
                if builder.full:
                    yield from _finished(builder)
        self._check_ends(slices, expected)
        yield from _finished(builder)
        bad.sum_up()

    def _schema_topics(self, slices: Sequence[Slice]) -> list[str]:
        """Return for each slice the topic whose schema versions its entries name; only Avro needs it."""
        if self._query.values is None or self._query.values.kind != "Avro":
            return [part.topic for part in slices]
        reader = self._query.service.reader()
        return [reader.schema_topic(part.topic, part.segment) for part in slices]

    def _value_columns(self, topic: str, schema_topic: str) -> ValueColumns | None:
        options = self._query.options.values
        if self._query.values is None or options is None or "value" not in self._query.schema.names:
            return None
        from anabranch.spark.values.planning import decoder_of
        from anabranch.spark.values.value_columns import ValueColumns

        kind = arrow_schema(self._query.schema).field("value").type
        reader = self._query.service.reader()
        decoder = decoder_of(self._query.values, kind, lambda version: reader.schema(schema_topic, version))
        return ValueColumns(decoder, options.bad_rows, topic)

    def _check_gap(self, part: Slice, expected: int, entry: StoredEntry) -> None:
        complete = entry.first <= expected if entry.complete is None else entry.complete
        if not complete:
            self._query.lost(
                f"segment {part.segment} of topic {part.topic} should be read from position "
                f"{part.text(expected)}, but the next message stored is {part.text(entry.first)}"
            )

    def _check_ends(self, slices: Sequence[Slice], reached: Sequence[int]) -> None:
        for part, position in zip(slices, reached, strict=True):
            if position < part.hi:
                self._query.lost(
                    f"segment {part.segment} of topic {part.topic} ended at position "
                    f"{part.text(position)}, before {part.text(part.hi)}"
                )


def sampled_sizes(reader: TopicReader, slices: Sequence[Slice], timeout_s: float) -> Sizes:
    """Measure the bytes per message of the largest slices, from one entry of each."""
    largest = sorted(slices, key=lambda part: -part.rows)[:SAMPLED_SEGMENTS]
    known = {}
    samples = [part._replace(hi=part.lo + 1) for part in largest]
    for number, entries in reader.read(samples, timeout_s):
        part = samples[number]
        # A bad entry gives no size. The task that reads it will report it.
        with suppress(*_BAD):
            payload = open_entry(entries[0].data, PAYLOAD_BYTES_MAX)
            known[part.topic, part.segment] = len(payload.data) / payload.count
    return Sizes(known, sum(known.values()) / len(known)) if known else Sizes()


class BadEntryReport:
    """Counts and reports the bad entries of one task, or fails at the first one if that is the policy."""

    def __init__(self, policy: BadEntries) -> None:
        self._policy = policy
        self._count = 0

    def add_to(
        self, builder: RowBuilder, entry: StoredEntry, part: Slice, keep: tuple[HashRange, ...] | None
    ) -> None:
        """Open an entry and add it to the rows, unless it is bad or has no rows for this task."""
        if not entry.positions or entry.elsewhere:
            return
        try:
            payload = open_entry(entry.data, PAYLOAD_BYTES_MAX)
            if payload.count != entry.positions:
                raise CorruptDataError(
                    f"it says that it has {payload.count} messages, but it has {entry.positions} positions"
                )
        except _BAD as error:
            self.add(part, entry.first, error)
        else:
            builder.add(payload, entry.first, part, keep)

    def add(self, part: Slice, first: int, error: AnabranchError) -> None:
        """Report one entry; `first` is the position of its first message."""
        place = f"position {first} of segment {part.segment} of topic {part.topic}"
        text = f"the entry at {place} cannot be read: {error}"
        if self._policy == "fail":
            raise BadEntryError(f"{text}. Set badEntries=skip to skip such entries", part.topic) from error
        self._count += 1
        log.warning("%s; it is skipped, because badEntries is skip", text)

    def sum_up(self) -> None:
        if self._count:
            log.warning("skipped entries that could not be read: %d", self._count)


def _finished(builder: RowBuilder | None) -> Iterator[Any]:
    batch = None if builder is None else builder.take()
    if batch is not None:
        yield batch
