"""A topic as it is when a pipeline begins: layout, extents of segments, and a frame of exactly those.

Pipelines that read a whole topic and compare the result with its layout need both from the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from anabranch.errors import InvalidConfigurationError, TopicNotFoundError
from anabranch.spark.decide.source.offsets import Cut, TopicCut, encode
from anabranch.spark.decide.source.topology import Slice, Topology
from anabranch.spark.options.queries import SourceOptions, read_sink_options, read_source_options, text_of
from anabranch.spark.pipelines.topic_places import READING, TopicPlace, as_topic_place, refuse_options
from anabranch.spark.service import close_sessions
from anabranch.spark.source.data_source import AnabranchSource
from anabranch.spark.topics import StoredEntry, TopicReader


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic with its extents, and access to its messages."""

    name: str
    topology: Topology
    reader: TopicReader
    given: Mapping[str, str]
    """The options of the source, as text."""
    options: SourceOptions
    source: type[AnabranchSource]

    @property
    def messages(self) -> int:
        """The number of messages; an estimate on Apache Pulsar."""
        return sum(tail.rows(tail.first, tail.next) for tail in self.topology.tails.values())

    def frame(self, spark: Any, columns: str, **more: object) -> Any:
        """Return a batch DataFrame of the messages inside the extents, with these columns."""
        spark.dataSource.register(self.source)
        tails = self.topology.tails
        end = Cut({self.name: TopicCut({id_: tail.next for id_, tail in tails.items()})})
        options = {**self.given, **text_of({"endingOffsets": encode(end), **more})}
        return spark.read.format(self.source.name()).schema(columns).options(**options).load()

    def part(self, segment: int, lo: int, hi: int) -> Slice:
        return Slice(self.name, segment, self.topology.layout.segments[segment].range, lo, hi)

    def entries(self, parts: Sequence[Slice]) -> Iterator[StoredEntry]:
        """Yield the entries of the parts, read by the driver; the parts should be small."""
        for _, entries in self.reader.read(parts, self.options.poll_timeout_s):
            yield from entries


def look_up(topic: TopicPlace | str) -> TopicSnapshot:
    """Return the topic as it is now, without access to its messages; raises TopicNotFoundError."""
    try:
        return stored_topic(topic)
    finally:
        close_sessions()


def check_source(place: TopicPlace) -> None:
    """Raise an error with the reason if a topic cannot be read, before Spark starts a query.

    A query would retry for minutes and show Spark's traces. A query with `waitForTopic` waits by itself.
    """
    try:
        look_up(place)
    except TopicNotFoundError:
        if not read_source_options(place.to_read()).wait_for_topic:
            raise


def check_sink(place: TopicPlace, sink: str) -> int:
    """Return the size of the largest message that a sink accepts, before work on the rows begins.

    Raises an error with the reason if rows cannot be staged. The logs of the sink are made if they are
    missing. The right to write to the topic itself is not checked, because a role usually gets it together
    with the right to write to the logs beside it; a limit of the topic itself is not checked either.
    """
    options = read_sink_options(place.to_write(delivery="exactly-once", sinkId=sink))
    service = AnabranchSource({}).service(options.service_url, options.client)
    try:
        opened = service.sink(options.sink_namespace, sink)
        stager = opened.stager(f"check-{uuid4().hex}", options.flush_bytes, options.compression)
        stager.close()
        return stager.message_bytes_max
    finally:
        close_sessions()


def stored_topic(topic: TopicPlace | str, source: type[AnabranchSource] = AnabranchSource) -> TopicSnapshot:
    """Look up the topic; tests pass a source that reads from files."""
    place = as_topic_place(topic)
    refuse_options(place, READING, "the pipeline")
    given = place.to_read()
    options = read_source_options(given)
    if len(options.topics) != 1:
        raise InvalidConfigurationError(f"name one topic, not {', '.join(options.topics)}")
    reader = source({}).service(options.service_url, options.client).reader()
    name = options.topics[0]
    try:
        topology = reader.topology(name)
    except BaseException:
        close_sessions()
        raise
    return TopicSnapshot(name, topology, reader, given, options, source)
