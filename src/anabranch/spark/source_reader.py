"""The reader of batch queries, and the parts that it shares with the reader of streams."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from anabranch.errors import InvalidConfigurationError, TopicNotFoundError
from anabranch.spark.decide.partitions import (
    Partition,
    PartitionLimits,
    plan_by_position,
    plan_in_key_order,
    tasks_for,
)
from anabranch.spark.decide.slices import slices_of_range
from anabranch.spark.decide.topology import Sizes, Slice, Topology
from anabranch.spark.options import SourceOptions
from anabranch.spark.topic_views import TopicViews
from anabranch.spark.topics import Service, TopicReader

if TYPE_CHECKING:
    # Imported late: few queries decode values.
    from anabranch.spark.values.planning import ValueSchema

PARTITIONS_MAX = 32
"""Most tasks of a micro-batch unless the user sets a number; a reader cannot see the size of the cluster."""

SPLIT_BYTES = 128 * 2**20
"""Bytes for one task of a batch job, as in Spark's file sources: about half a second of work."""

SHARED_BYTES = 32 * 2**20
"""From this size on a batch job gets at least two tasks, because any machine has two cores."""

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
        if isinstance(partition, PlannedPartition):
            from anabranch.spark.partition_rows import PartitionRows

            yield from PartitionRows(self, partition.runs).batches()

    def sizes(self, reader: TopicReader, slices: Sequence[Slice]) -> Sizes:
        """Measure the bytes per message of the largest slices, by one entry of each."""
        from anabranch.spark.partition_rows import sampled_sizes

        return sampled_sizes(reader, slices, self.options.poll_timeout_s)


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
            found = source.topologies(reader, fresh=True)
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
