"""The reader of batch queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.partitions import plan_by_position
from anabranch.spark.decide.slices import slices_of_range
from anabranch.spark.decide.starts import resolve
from anabranch.spark.decide.topology import Slice
from anabranch.spark.options import SourceOptions
from anabranch.spark.source_reader import POSITION_ONLY, PlannedPartition, SourceReader, refuse_set, requested
from anabranch.spark.topics import Service

SHARED_BYTES = 32 * 2**20
"""From this size on a batch job gets at least two tasks, because any machine has two cores."""

_STREAM_ONLY = {
    "max_rows": "maxOffsetsPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "min_rows": "minOffsetsPerTrigger",
}


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads from one cut to another; both are resolved when Spark first plans the DataFrame."""

    def __init__(self, service: Service, options: SourceOptions, schema: Any) -> None:
        if options.starting is not None and options.starting.at == "latest":
            raise InvalidConfigurationError("startingOffsets=latest makes no sense in a batch query")
        if options.ending is not None and options.ending.at == "earliest":
            raise InvalidConfigurationError("endingOffsets=earliest makes no sense in a batch query")
        refuse_set(options, "a batch query", _STREAM_ONLY)
        if options.ordering == "key":
            refuse_set(options, "a batch query with ordering=key", POSITION_ONLY)
        elif options.buckets > 1:
            raise InvalidConfigurationError("bucketsPerSegment needs ordering=key in a batch query")
        self.source = SourceReader(service, options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve "latest" and plan; Spark calls this once per DataFrame."""
        source, options = self.source, self.source.options
        reader = source.service.reader()
        slices: list[Slice] = []
        for topic, topology in source.topologies(reader).items():
            start = resolve(requested(options.starting, topic, "earliest"), topology, topic)
            end = resolve(requested(options.ending, topic, "latest"), topology, topic)
            slices += slices_of_range(start, end, topology, topic, source.lost)
        if options.ordering == "key":
            return source.plan_in_key_order(slices)
        sizes = source.sizes(reader, slices)
        fewest = options.min_partitions or (2 if sizes.total(slices) > SHARED_BYTES else None)
        limits = source.position_limits(options.max_partitions, fewest)
        return [PlannedPartition(runs) for runs in plan_by_position(slices, limits, sizes)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.source.read_partition(partition)
