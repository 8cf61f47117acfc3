"""The reader of batch queries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from anabranch.errors import InvalidConfigurationError, TopicNotFoundError
from anabranch.spark.decide.source.slices import slices_of_range
from anabranch.spark.decide.source.topology import Slice, Topology
from anabranch.spark.options.queries import SourceOptions
from anabranch.spark.source.query import SourceQuery
from anabranch.spark.topics import Service, TopicReader

if TYPE_CHECKING:
    # Imported late: few queries decode values.
    from anabranch.spark.values.planning import ValueSchema

SHARED_BYTES = 32 * 2**20
"""A batch job of at least this size gets two tasks or more, because any machine has two cores."""

WAITING_S = 0.2
"""Pause between lookups of a topic that does not exist yet."""

POSITION_ONLY = {
    "max_partition_rows": "maxRecordsPerPartition",
    "split_bytes": "splitBytes",
}
"""Options that have no effect with ordering=key, by field of SourceOptions."""

_STREAM_ONLY = {
    "max_rows": "maxOffsetsPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "min_rows": "minOffsetsPerTrigger",
}


def refuse_set(options: SourceOptions, where: str, names: Mapping[str, str]) -> None:
    """Raise InvalidConfigurationError if one of these options is set."""
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
        self.source = SourceQuery(service, options, schema, values)

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve start and end, and plan the tasks; Spark calls this once per DataFrame."""
        source, options = self.source, self.source.options
        reader = source.reader()
        slices: list[Slice] = []
        for topic, topology in self._existing(reader).items():
            start = source.cut_of(reader, options.starting, topic, topology, "earliest")
            end = source.cut_of(reader, options.ending, topic, topology, "latest")
            slices += slices_of_range(start, end, topology, topic, source.lost)
        if options.ordering == "key":
            return source.plan_in_key_order(slices)
        # Imported late, so that the processes that plan micro-batches (one per query) do not load Arrow.
        from anabranch.spark.source.partition_rows import sampled_sizes

        sizes = sampled_sizes(reader, slices, options.poll_timeout_s)
        fewest = options.min_partitions or (2 if sizes.total(slices) > SHARED_BYTES else None)
        return source.plan_by_position(slices, sizes, options.max_partitions, fewest)

    def _existing(self, reader: TopicReader) -> dict[str, Topology]:
        """Return the topologies of all topics; wait for missing ones if the options say so."""
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
        from anabranch.spark.source.partition_rows import read_partition

        return read_partition(self.source, partition)
