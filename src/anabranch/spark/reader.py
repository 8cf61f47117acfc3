"""The batch and stream readers: what Spark calls, in front of the planner and the topics.

Several copies of a reader live in different processes and share nothing but their options: one on the driver
plans, others are pickled into tasks and read. So nothing here may depend on what an earlier call left behind,
except to save work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from anabranch.errors import AnabranchError, DataLossError, InvalidConfigurationError, TopicNotFoundError
from anabranch.spark.decide.offsets import Cut, Start, TopicCut, decode, encode
from anabranch.spark.decide.partitions import Partition, plan_by_position, plan_in_key_order
from anabranch.spark.decide.planner import (
    Limit,
    Sizes,
    Slice,
    Topology,
    advance,
    forget_gone,
    resolve,
    slices_between,
    slices_of_range,
    tails_cut,
)
from anabranch.spark.entries import open_entry
from anabranch.spark.options import SourceOptions
from anabranch.spark.rows import RowBuilder
from anabranch.spark.topics import Service, TopicReader

log = logging.getLogger("anabranch.spark")

LANE_PARTITIONS = 32
"""Most tasks of a micro-batch unless the user says otherwise; a reader cannot see the cluster's size."""

SPLIT_BYTES = 128 * 2**20
"""What one task of a batch job reads, as in Spark's file sources: half a second, and 55 ms to start it."""

SHARED_BYTES = 32 * 2**20
"""From here on a batch job gets two tasks at least, as any machine has two cores."""

PAYLOAD_BYTES_MAX = 64 * 2**20
"""Most bytes one entry may unfold to."""

SAMPLED_SEGMENTS = 16
"""Segments whose message size is measured per plan; the others are taken to be like them."""


class PlannedPartition(InputPartition):  # type: ignore[misc]
    """The lanes one task reads."""

    def __init__(self, lanes: Partition) -> None:
        self.lanes = lanes

    def __repr__(self) -> str:
        return f"PlannedPartition({self.lanes!r})"


@dataclass(frozen=True)
class SourceReader:
    """What batch and stream readers have in common; a value, so that it can be pickled."""

    service: Service
    options: SourceOptions
    schema: Any

    def topologies(self, reader: TopicReader) -> dict[str, Topology]:
        """Layouts and tails of all topics now."""
        return {topic: self.topology(reader, topic) for topic in self.options.topics}

    def topology(self, reader: TopicReader, topic: str) -> Topology:
        """Layout and tails of one topic; asks again after errors that pass, as often as the options say."""
        for _ in range(self.options.retries):
            try:
                return reader.topology(topic)
            except AnabranchError as error:
                if not error.retryable:
                    raise
                log.info("asking again after: %s", error)
                time.sleep(self.options.retry_interval_s)
        return reader.topology(topic)

    def lost(self, text: str) -> None:
        """Raise for lost messages, or note them and go on, as the options say."""
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to go on with what is still there")
        log.warning("%s; going on, because failOnDataLoss is false", text)

    def read_lanes(self, lanes: Partition) -> Iterator[Any]:
        """Arrow batches of the lanes, in their order."""
        steps = [(part, lane.ranges_for(part)) for lane in lanes for part in lane.slices]
        if not steps:
            return
        reader = self.service.reader()
        topic = steps[0][0].topic
        builder = RowBuilder(self.schema, topic)
        expected = [part.lo for part, _ in steps]
        for step, entries in reader.read([part for part, _ in steps], self.options.poll_timeout_s):
            part, keep = steps[step]
            if part.topic != topic:
                batch = builder.take()
                if batch is not None:
                    yield batch
                topic = part.topic
                builder = RowBuilder(self.schema, topic)
            for first, data in entries:
                if first > expected[step]:
                    self.lost(
                        f"segment {part.segment} of topic {topic} should be read from position "
                        f"{expected[step]}, but the next message stored is {first}"
                    )
                payload = open_entry(data, PAYLOAD_BYTES_MAX)
                builder.add(payload, first, part, keep)
                expected[step] = first + payload.count
                if builder.full:
                    batch = builder.take()
                    if batch is not None:
                        yield batch
        for (part, _), reached in zip(steps, expected, strict=True):
            if reached < part.hi:
                self.lost(
                    f"segment {part.segment} of topic {part.topic} ended at position {reached}, "
                    f"before {part.hi}"
                )
        batch = builder.take()
        if batch is not None:
            yield batch

    def sizes(self, reader: TopicReader, slices: Sequence[Slice]) -> Sizes:
        """Measured bytes per message of the largest slices, from one entry each."""
        largest = sorted(slices, key=lambda part: -part.rows)[:SAMPLED_SEGMENTS]
        known = {}
        ones = [part._replace(hi=part.lo + 1) for part in largest]
        for number, entries in reader.read(ones, self.options.poll_timeout_s):
            if entries:
                payload = open_entry(entries[0].data, PAYLOAD_BYTES_MAX)
                part = ones[number]
                known[part.topic, part.segment] = len(payload.data) / max(1, payload.count)
        if not known:
            return Sizes()
        return Sizes(known, sum(known.values()) / len(known))


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads from one cut to another; both are fixed when the DataFrame is planned first."""

    def __init__(self, service: Service, options: SourceOptions, schema: Any) -> None:
        if options.starting is not None and options.starting.at == "latest":
            raise InvalidConfigurationError("startingOffsets=latest makes no sense in a batch query")
        if options.ending is not None and options.ending.at == "earliest":
            raise InvalidConfigurationError("endingOffsets=earliest makes no sense in a batch query")
        _refuse_set(options, "a batch query", _STREAM_ONLY)
        if options.ordering == "key":
            _refuse_set(options, "a batch query with ordering=key", _POSITION_ONLY)
        elif options.buckets > 1:
            raise InvalidConfigurationError("bucketsPerSegment needs ordering=key in a batch query")
        self.source = SourceReader(service, options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Called once per DataFrame, so this is when "latest" is resolved."""
        source, options = self.source, self.source.options
        reader = source.service.reader()
        slices: list[Slice] = []
        for topic, topology in source.topologies(reader).items():
            start = resolve(_wanted(options.starting, topic, "earliest"), topology, topic)
            end = resolve(_wanted(options.ending, topic, "latest"), topology, topic)
            slices += slices_of_range(start, end, topology, topic, source.lost)
        if options.ordering == "key":
            planned = plan_in_key_order(slices, options.max_partitions or LANE_PARTITIONS, options.buckets)
        else:
            sizes = source.sizes(reader, slices)
            planned = plan_by_position(
                slices,
                split_bytes=options.split_bytes or SPLIT_BYTES,
                max_partitions=options.max_partitions,
                min_partitions=options.min_partitions or (2 if sizes.total(slices) > SHARED_BYTES else None),
                max_rows=options.max_partition_rows,
                sizes=sizes,
            )
        return [PlannedPartition(lanes) for lanes in planned]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark makes up a partition of its own when we plan none.
        if isinstance(partition, PlannedPartition):
            yield from self.source.read_lanes(partition.lanes)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans and reads micro-batches; its only memory between runs is the offset log of Spark."""

    def __init__(self, service: Service, options: SourceOptions, schema: Any) -> None:
        if options.ending is not None:
            raise InvalidConfigurationError("endingOffsets is for batch queries; a stream has no end")
        if options.ordering == "none":
            if options.buckets > 1:
                raise InvalidConfigurationError("bucketsPerSegment needs ordering=key")
        else:
            _refuse_set(options, "a stream with ordering=key", _POSITION_ONLY)
        self.source = SourceReader(service, options, schema)
        self._view: dict[str, Topology] | None = None
        self._view_until = 0.0
        self._fixed_view: dict[str, Topology] | None = None
        self._sizes: tuple[Cut, Sizes] | None = None
        self._moved_at = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The request where to start; the first micro-batch answers it and reads nothing."""
        return encode(self.source.options.starting or Start("latest"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark passes on one limit only. Which one does not matter: all limits of the options apply whenever
        # it is not ReadAllAvailable.
        options = self.source.options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_rows is not None:
            return ReadMinRows(options.min_rows)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix what there is now; later messages and segments stay invisible, so the run ends."""
        self._fixed_view = self.source.topologies(self.source.service.reader())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The cut to read up to; `start` itself when there is nothing to read, since Spark compares text."""
        topologies = self._current()
        offset = decode(start)
        if isinstance(offset, Start):
            pinned = {
                topic: resolve(_wanted(offset, topic, "earliest"), topology, topic)
                for topic, topology in topologies.items()
            }
            return encode(Cut(pinned))
        known = self._known_topics(offset)
        new = [topic for topic in topologies if topic not in known.topics]
        if new:
            # A topic added to the options of a running query starts at its earliest message.
            added = {topic: resolve("earliest", topologies[topic], topic) for topic in new}
            return encode(Cut({**known.topics, **added}))
        cleaned = forget_gone(known, topologies, self.source.lost)
        unlimited = isinstance(limit, ReadAllAvailable)
        if not unlimited and self._should_wait(cleaned, topologies):
            return start
        end = advance(
            cleaned,
            topologies,
            Limit() if unlimited else self._limit(),
            chain=self.source.options.chain,
            sizes=Sizes() if unlimited else self._message_sizes(cleaned, topologies),
        )
        if end is cleaned:
            return start
        self._moved_at = time.monotonic()
        return encode(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest tails seen, which Spark shows beside the offsets reached."""
        return encode(tails_cut(self._view)) if self._view is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = decode(start), decode(end)
        assert isinstance(after, Cut), "Spark stores only offsets that latestOffset returned"
        if isinstance(before, Start):
            return []
        source, options = self.source, self.source.options
        reader = source.service.reader()
        topics = sorted(set(before.topics) & set(after.topics))
        topologies = self._covering(reader, topics, after)
        slices = slices_between(before, after, topologies, source.lost)
        if options.ordering == "none":
            planned = plan_by_position(
                slices,
                split_bytes=options.split_bytes or SPLIT_BYTES,
                max_partitions=options.max_partitions or LANE_PARTITIONS,
                min_partitions=options.min_partitions,
                max_rows=options.max_partition_rows,
                sizes=source.sizes(reader, slices),
            )
        else:
            planned = plan_in_key_order(slices, options.max_partitions or LANE_PARTITIONS, options.buckets)
        return [PlannedPartition(lanes) for lanes in planned]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, PlannedPartition):
            yield from self.source.read_lanes(partition.lanes)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's own log is the only truth about what was read."""

    def stop(self) -> None:
        """Nothing to do: Spark often kills the process without calling this."""

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles a reader into the tasks; what was seen on the driver is of no use there.
        return {**self.__dict__, "_view": None, "_fixed_view": None, "_sizes": None}

    def _current(self) -> dict[str, Topology]:
        """What may be read in this run: the fixed view of AvailableNow, or a view that is young enough.

        Spark asks some 90 times a second while nothing happens; most of these calls need no broker.
        """
        if self._fixed_view is not None:
            self._view = self._fixed_view
            return self._fixed_view
        began = time.monotonic()
        if self._view is None or began >= self._view_until:
            self._view = self.source.topologies(self.source.service.reader())
            ended = time.monotonic()
            # A topic of many segments is asked less often, so that asking stays a small part of the time.
            self._view_until = ended + max(self.source.options.view_ttl_s, 5 * (ended - began))
        return self._view

    def _covering(self, reader: TopicReader, topics: Sequence[str], end: Cut) -> Mapping[str, Topology]:
        """A view that reaches up to `end`; the last one as a rule, a newer one when a batch is replayed."""
        view = self._view
        if view is not None and all(
            topic in view and _reaches(view[topic], end.topics[topic]) for topic in topics
        ):
            return view
        found = {}
        for topic in topics:
            try:
                found[topic] = self.source.topology(reader, topic)
            except TopicNotFoundError:
                if topic in self.source.options.topics:
                    raise
                raise DataLossError(
                    f"topic {topic} is gone, but the batch that Spark repeats needs it"
                ) from None
        return found

    def _known_topics(self, offset: Cut) -> Cut:
        """The offset without topics that the options no longer name."""
        wanted = self.source.options.topics
        left = [topic for topic in offset.topics if topic not in wanted]
        if not left:
            return offset
        log.warning("no longer reading %s, which the options do not name any more", ", ".join(left))
        return Cut({topic: cut for topic, cut in offset.topics.items() if topic in wanted})

    def _limit(self) -> Limit:
        return Limit(self.source.options.max_rows, self.source.options.max_bytes)

    def _should_wait(self, cut: Cut, topologies: Mapping[str, Topology]) -> bool:
        """Whether fewer messages wait than the user wants per micro-batch, and not yet for too long."""
        options = self.source.options
        if options.min_rows is None or self._fixed_view is not None:
            return False
        if time.monotonic() - self._moved_at >= options.max_delay_s:
            return False
        end = advance(cut, topologies, Limit(rows=options.min_rows), chain=True)
        return _rows_between(cut, end) < options.min_rows

    def _message_sizes(self, cut: Cut, topologies: Mapping[str, Topology]) -> Sizes:
        """Bytes per message where the next messages are, measured again when the position has moved."""
        if self.source.options.max_bytes is None:
            return Sizes()
        if self._sizes is None or self._sizes[0] != cut:
            end = advance(cut, topologies, chain=False)
            slices = slices_between(cut, end, topologies, self.source.lost)
            if not slices:
                return Sizes()
            self._sizes = (cut, self.source.sizes(self.source.service.reader(), slices))
        return self._sizes[1]


_STREAM_ONLY = {
    "max_rows": "maxOffsetsPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "min_rows": "minOffsetsPerTrigger",
}
_POSITION_ONLY = {
    "min_partitions": "minPartitions",
    "max_partition_rows": "maxRecordsPerPartition",
    "split_bytes": "splitBytes",
}


def _refuse_set(options: SourceOptions, where: str, names: Mapping[str, str]) -> None:
    for name, option in names.items():
        if getattr(options, name) is not None:
            raise InvalidConfigurationError(f"option {option} has no meaning in {where}")


def _wanted(request: Start | None, topic: str, otherwise: str) -> Any:
    """What a request says about one topic; a cut that does not name the topic says nothing."""
    at = otherwise if request is None else request.at
    if isinstance(at, Cut):
        return at.topics.get(topic, otherwise)
    return at


def _reaches(topology: Topology, cut: TopicCut) -> bool:
    tails = topology.tails
    return all(id_ in tails and position <= tails[id_].next for id_, position in cut.positions.items())


def _rows_between(start: Cut, end: Cut) -> int:
    return sum(
        position - start.topics[topic].positions.get(id_, 0)
        for topic, cut in end.topics.items()
        for id_, position in cut.positions.items()
    )
