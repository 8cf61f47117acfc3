"""A query as the driver and its tasks share it: options and schema, and how they become topics and cuts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import InputPartition

from anabranch.errors import AnabranchError, DataLossError, InvalidConfigurationError, TopicNotFoundError
from anabranch.spark.decide.source.moments import moment_ms
from anabranch.spark.decide.source.offsets import Cut, Start, TopicCut
from anabranch.spark.decide.source.partitions import (
    Partition,
    PartitionLimits,
    plan_by_position,
    plan_in_key_order,
    tasks_for,
)
from anabranch.spark.decide.source.starts import cut_from, resolve, resolve_time
from anabranch.spark.decide.source.topology import Sizes, Slice, Topology
from anabranch.spark.options.queries import SourceOptions
from anabranch.spark.topics import Service, TopicReader

if TYPE_CHECKING:
    # Imported late: few queries decode values.
    from anabranch.spark.values.planning import ValueSchema

log = logging.getLogger("anabranch.spark")

T = TypeVar("T")

PARTITIONS_MAX = 32
"""Most tasks of a micro-batch if the user sets no number; a reader cannot see the size of the cluster."""

SPLIT_BYTES = 128 * 2**20
"""Bytes for one task of a batch job, as in Spark's file sources: about half a second of work."""


class PlannedPartition(InputPartition):  # type: ignore[misc]
    """The strands that one task reads."""

    def __init__(self, strands: Partition) -> None:
        self.strands = strands


@dataclass(frozen=True)
class SourceQuery:
    """One query. It is pickled into tasks, so it is a plain value and remembers nothing between calls."""

    service: Service
    options: SourceOptions
    schema: Any
    values: ValueSchema | None = None
    """The schema to decode values with; None leaves them as bytes."""

    def reader(self) -> TopicReader:
        """Return the reader of this process; the first connection is retried as the options say."""
        return self._retried(self.service.reader, "the first connection")

    def topics(self, reader: TopicReader) -> Sequence[str]:
        """Return the topics that the query reads now. Topics given by name may not exist yet."""
        pattern = self.options.pattern
        return self.options.topics if pattern is None else reader.topics(pattern)

    def topologies(
        self, reader: TopicReader, topics: Sequence[str] | None = None, *, fresh: bool = False
    ) -> dict[str, Topology]:
        """Return the topologies of these topics, or of all; a topic that may be missing is left out.

        A query that starts asks for `fresh` ones, so that it does not expect messages that were removed.
        """
        found = {}
        for topic in self.topics(reader) if topics is None else topics:
            try:
                found[topic] = self.topology(reader, topic, fresh=fresh)
            except TopicNotFoundError:
                if self.options.pattern is None and not self.options.wait_for_topic:
                    raise
        return found

    def cut_of(
        self, reader: TopicReader, request: Start | None, topic: str, topology: Topology, otherwise: str
    ) -> TopicCut:
        """Return the cut that a request means now; `otherwise` applies to a topic that it does not name."""
        moment = None if request is None or request.times is None else request.times.of(topic)
        if request is not None and request.times is not None and moment is not None:
            places = reader.positions_at(topic, topology, moment_ms(moment, time.time_ns() // 1_000_000))
            return resolve_time(places, topology, topic, moment, request.times.strategy)
        at = requested(request, topic, otherwise)
        name = self.options.subscription
        if at != "subscription" or name is None:
            return resolve(at, topology, topic)
        found = reader.cursor_positions(topic, topology, name)
        if found is None:
            raise InvalidConfigurationError(
                f"topic {topic} has no subscription {name} to start from; "
                "start the first query with another startingOffsets"
            )
        return cut_from(found, topology)

    def topology(self, reader: TopicReader, topic: str, *, fresh: bool = False) -> Topology:
        """Return the current topology of one topic; the lookup is retried as the options say."""
        return self._retried(lambda: reader.topology(topic, fresh=fresh), f"the lookup of {topic}")

    def _retried(self, work: Callable[[], T], what: str) -> T:
        for _ in range(self.options.retries):
            try:
                return work()
            except AnabranchError as error:
                if not error.retryable:
                    raise
                log.info("retrying %s after: %s", what, error)
                time.sleep(self.options.retry_interval_s)
        return work()

    def lost(self, text: str) -> None:
        """Raise DataLossError, or log the loss and return, as the options say."""
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to continue with the remaining messages")
        log.warning("%s; continuing, because failOnDataLoss is false", text)

    def plan_in_key_order(self, slices: Sequence[Slice]) -> list[PlannedPartition]:
        options = self.options
        most = options.max_partitions or PARTITIONS_MAX
        fewest = options.min_partitions or tasks_for(sum(s.rows for s in slices), options.max_partitions)
        planned = plan_in_key_order(slices, most, options.buckets, fewest)
        return [PlannedPartition(strands) for strands in planned]

    def plan_by_position(
        self, slices: Sequence[Slice], sizes: Sizes, most: int | None, fewest: int | None
    ) -> list[PlannedPartition]:
        options = self.options
        split_bytes = options.split_bytes or SPLIT_BYTES
        limits = PartitionLimits(split_bytes, most, fewest, options.max_partition_rows)
        return [PlannedPartition(strands) for strands in plan_by_position(slices, limits, sizes)]


def requested(request: Start | None, topic: str, otherwise: str) -> Any:
    """Return the request for one topic, or `otherwise` if the request does not name the topic."""
    at = otherwise if request is None else request.at
    if isinstance(at, Cut):
        return at.topics.get(topic, otherwise)
    return at
