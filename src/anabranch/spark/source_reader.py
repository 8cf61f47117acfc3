"""The reader of batch queries, and the parts that it shares with the reader of streams."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from anabranch.errors import (
    AnabranchError,
    BadEntryError,
    ChecksumError,
    CompressionError,
    CorruptDataError,
    InvalidConfigurationError,
    TopicNotFoundError,
)
from anabranch.model.ranges import HashRange
from anabranch.spark.decide.partitions import (
    Partition,
    PartitionLimits,
    plan_by_position,
    plan_in_key_order,
    tasks_for,
)
from anabranch.spark.decide.slices import slices_of_range
from anabranch.spark.decide.topology import Sizes, Slice, Topology
from anabranch.spark.entries import open_entry
from anabranch.spark.options import BadEntries, SourceOptions
from anabranch.spark.rows import RowBuilder, arrow_schema
from anabranch.spark.topic_views import TopicViews, log
from anabranch.spark.topics import Service, StoredEntry, TopicReader

if TYPE_CHECKING:
    # Imported late: few queries decode values.
    from anabranch.spark.values.planning import ValueSchema
    from anabranch.spark.values.value_columns import ValueColumns

PARTITIONS_MAX = 32
"""Most tasks of a micro-batch unless the user sets a number; a reader cannot see the size of the cluster."""

SPLIT_BYTES = 128 * 2**20
"""Bytes for one task of a batch job, as in Spark's file sources: about half a second of work."""

SHARED_BYTES = 32 * 2**20
"""From this size on a batch job gets at least two tasks, because any machine has two cores."""

PAYLOAD_BYTES_MAX = 64 * 2**20
"""Most bytes that one entry may unpack to."""

SAMPLED_SEGMENTS = 16
"""Segments whose message size is measured per plan; their mean stands for the others."""

WAITING_S = 0.2
"""Pause between look-ups of a topic that does not exist yet."""

POSITION_ONLY = {
    "max_partition_rows": "maxRecordsPerPartition",
    "split_bytes": "splitBytes",
}
"""Options that have no meaning with ordering=key."""

_STREAM_ONLY = {
    "max_rows": "maxOffsetsPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "min_rows": "minOffsetsPerTrigger",
}


_BAD = (ChecksumError, CompressionError, CorruptDataError)
"""Errors of an entry that cannot be decoded; an encrypted one is not bad, and fails the query."""


class PlannedPartition(InputPartition):  # type: ignore[misc]
    """The runs that one task reads."""

    def __init__(self, runs: Partition) -> None:
        self.runs = runs


@dataclass(frozen=True)
class SourceReader(TopicViews):
    """A query; pickled into the tasks of a job, so it is a value and remembers nothing between calls."""

    schema: Any
    values: ValueSchema | None = None
    """The schema to decode values with; None leaves them as bytes."""

    def plan_in_key_order(self, slices: Sequence[Slice]) -> list[PlannedPartition]:
        options = self.options
        most = options.max_partitions or PARTITIONS_MAX
        fewest = options.min_partitions or tasks_for(sum(s.rows for s in slices), options.max_partitions)
        planned = plan_in_key_order(slices, most, options.buckets, fewest)
        return [PlannedPartition(runs) for runs in planned]

    def plan_by_position(
        self, slices: Sequence[Slice], sizes: Sizes, most: int | None, fewest: int | None
    ) -> list[PlannedPartition]:
        options = self.options
        split_bytes = options.split_bytes or SPLIT_BYTES
        limits = PartitionLimits(split_bytes, most, fewest, options.max_partition_rows)
        return [PlannedPartition(runs) for runs in plan_by_position(slices, limits, sizes)]

    def read_partition(self, partition: InputPartition) -> Iterator[Any]:
        """Yield Arrow batches of the runs, in their order."""
        # Spark makes a partition of its own when a reader plans none.
        if not isinstance(partition, PlannedPartition):
            return
        steps = [(part, run.ranges_for(part)) for run in partition.runs for part in run.slices]
        expected = [part.lo for part, _ in steps]
        slices = [part for part, _ in steps]
        builder: RowBuilder | None = None
        bad = BadEntryReport(self.options.bad_entries)
        for step, entries in self.service.reader().read(slices, self.options.poll_timeout_s):
            part, keep = steps[step]
            if builder is None or builder.topic != part.topic:
                yield from _finished(builder)
                builder = RowBuilder(self.schema, part.topic, bad.add, self._value_columns(part.topic))
            for entry in entries:
                self._check_gap(part, expected[step], entry)
                expected[step] = entry.first + entry.positions
                bad.add_to(builder, entry, part, keep)
                if builder.full:
                    yield from _finished(builder)
        self._check_ends(slices, expected)
        yield from _finished(builder)
        bad.sum_up()

    def _value_columns(self, topic: str) -> ValueColumns | None:
        options = self.options.values
        if self.values is None or options is None or "value" not in self.schema.names:
            return None
        from anabranch.spark.values.planning import decoder_of
        from anabranch.spark.values.value_columns import ValueColumns

        kind = arrow_schema(self.schema).field("value").type
        reader = self.service.reader()
        decoder = decoder_of(self.values, kind, lambda version: reader.schema(topic, version))
        return ValueColumns(decoder, options.bad_rows, topic)

    def _check_gap(self, part: Slice, expected: int, entry: StoredEntry) -> None:
        complete = entry.first <= expected if entry.complete is None else entry.complete
        if not complete:
            self.lost(
                f"segment {part.segment} of topic {part.topic} should be read from position "
                f"{part.text(expected)}, but the next message stored is {part.text(entry.first)}"
            )

    def _check_ends(self, slices: Sequence[Slice], reached: Sequence[int]) -> None:
        for part, position in zip(slices, reached, strict=True):
            if position < part.hi:
                self.lost(
                    f"segment {part.segment} of topic {part.topic} ended at position "
                    f"{part.text(position)}, before {part.text(part.hi)}"
                )

    def sizes(self, reader: TopicReader, slices: Sequence[Slice]) -> Sizes:
        """Measure the bytes per message of the largest slices, by one entry of each."""
        largest = sorted(slices, key=lambda part: -part.rows)[:SAMPLED_SEGMENTS]
        known = {}
        samples = [part._replace(hi=part.lo + 1) for part in largest]
        for number, entries in reader.read(samples, self.options.poll_timeout_s):
            part = samples[number]
            # A bad entry gives no size; the task that reads it reports it.
            with suppress(*_BAD):
                payload = open_entry(entries[0].data, PAYLOAD_BYTES_MAX)
                known[part.topic, part.segment] = len(payload.data) / payload.count
        return Sizes(known, sum(known.values()) / len(known)) if known else Sizes()


class BadEntryReport:
    """Counts and reports the entries of one task that cannot be decoded, and fails if that is the policy."""

    def __init__(self, policy: BadEntries) -> None:
        self._policy = policy
        self._count = 0

    def add_to(
        self, builder: RowBuilder, entry: StoredEntry, part: Slice, keep: tuple[HashRange, ...] | None
    ) -> None:
        """Open an entry and add it to the rows, unless it is bad and skipped, or has none for this task."""
        if not entry.positions or entry.elsewhere:
            return
        try:
            payload = open_entry(entry.data, PAYLOAD_BYTES_MAX)
            if payload.count != entry.positions:
                raise CorruptDataError(f"it claims {payload.count} messages at {entry.positions} positions")
        except _BAD as error:
            self.add(part, entry.first, error)
        else:
            builder.add(payload, entry.first, part, keep)

    def add(self, part: Slice, first: int, error: AnabranchError) -> None:
        """Report one entry; `first` is the position of its first message."""
        place = f"position {first} of segment {part.segment} of topic {part.topic}"
        text = f"the entry at {place} cannot be read: {error}"
        if self._policy == "fail":
            raise BadEntryError(f"{text}. Set badEntries=skip to go on without it", part.topic) from error
        self._count += 1
        log.warning("%s; it is skipped, because badEntries is skip", text)

    def sum_up(self) -> None:
        if self._count:
            log.warning("%d entries that could not be read were skipped", self._count)


def _finished(builder: RowBuilder | None) -> Iterator[Any]:
    batch = None if builder is None else builder.take()
    if batch is not None:
        yield batch


def refuse_set(options: SourceOptions, where: str, names: Mapping[str, str]) -> None:
    """Raise InvalidConfigurationError when one of these options is set."""
    for name, option in names.items():
        if getattr(options, name) is not None:
            raise InvalidConfigurationError(f"option {option} has no meaning in {where}")


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads from one cut to another; both are resolved when Spark first plans the DataFrame."""

    def __init__(
        self, service: Service, options: SourceOptions, schema: Any, values: ValueSchema | None = None
    ) -> None:
        if options.starting is not None and options.starting.at == "latest":
            raise InvalidConfigurationError("startingOffsets=latest makes no sense in a batch query")
        if options.ending is not None and options.ending.at == "earliest":
            raise InvalidConfigurationError("endingOffsets=earliest makes no sense in a batch query")
        refuse_set(options, "a batch query", _STREAM_ONLY)
        if options.ordering == "key":
            refuse_set(options, "a batch query with ordering=key", POSITION_ONLY)
        elif options.buckets > 1:
            raise InvalidConfigurationError("bucketsPerSegment needs ordering=key in a batch query")
        self.source = SourceReader(service, options, schema, values)

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve "latest" and plan; Spark calls this once per DataFrame."""
        source, options = self.source, self.source.options
        reader = source.service.reader()
        slices: list[Slice] = []
        for topic, topology in self._existing(reader).items():
            start = source.cut_of(reader, options.starting, topic, topology, "earliest")
            end = source.cut_of(reader, options.ending, topic, topology, "latest")
            slices += slices_of_range(start, end, topology, topic, source.lost)
        if options.ordering == "key":
            return source.plan_in_key_order(slices)
        sizes = source.sizes(reader, slices)
        fewest = options.min_partitions or (2 if sizes.total(slices) > SHARED_BYTES else None)
        return source.plan_by_position(slices, sizes, options.max_partitions, fewest)

    def _existing(self, reader: TopicReader) -> dict[str, Topology]:
        """Return the topologies of all topics; waits for missing ones if the user wants that."""
        source, options = self.source, self.source.options
        deadline = time.monotonic() + options.poll_timeout_s
        while True:
            found = source.topologies(reader)
            missing = [topic for topic in options.topics if topic not in found]
            if not missing:
                return found
            if time.monotonic() >= deadline:
                raise TopicNotFoundError(
                    f"{', '.join(missing)} did not appear within {options.poll_timeout_s:g} s"
                )
            time.sleep(WAITING_S)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.source.read_partition(partition)
