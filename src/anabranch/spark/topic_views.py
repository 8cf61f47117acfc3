"""The topics of a query as its driver sees them: names, topologies, and the cuts of its start and end."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.errors import AnabranchError, DataLossError, InvalidConfigurationError, TopicNotFoundError
from anabranch.spark.decide.moments import moment_ms
from anabranch.spark.decide.offsets import Cut, Start, TopicCut
from anabranch.spark.decide.starts import cut_from, resolve, resolve_time
from anabranch.spark.decide.topology import Topology
from anabranch.spark.options import SourceOptions
from anabranch.spark.topics import Service, TopicReader

log = logging.getLogger("anabranch.spark")


@dataclass(frozen=True)
class TopicViews:
    """The topics that a query reads; a value that remembers nothing between calls."""

    service: Service
    options: SourceOptions

    def topics(self, reader: TopicReader) -> Sequence[str]:
        """Return the topics that the query reads now; those of a pattern exist."""
        pattern = self.options.pattern
        return self.options.topics if pattern is None else reader.topics(pattern)

    def topologies(
        self, reader: TopicReader, topics: Sequence[str] | None = None, *, fresh: bool = False
    ) -> dict[str, Topology]:
        """Return the topologies of these topics, or of all; one that may be missing is left out.

        A query that begins wants `fresh` ones, because it must not expect messages that are removed.
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
        """Return the cut that a request stands for now; `otherwise` for a topic that it does not name."""
        moment = None if request is None or request.times is None else request.times.of(topic)
        if request is not None and request.times is not None and moment is not None:
            places = reader.places_at(topic, topology, moment_ms(moment, time.time_ns() // 1_000_000))
            return resolve_time(places, topology, topic, moment, request.times.strategy)
        at = requested(request, topic, otherwise)
        name = self.options.subscription
        if at != "subscription" or name is None:
            return resolve(at, topology, topic)
        found = reader.places_of(topic, topology, name)
        if found is None:
            raise InvalidConfigurationError(
                f"topic {topic} has no subscription {name} to start from; "
                "start the first query with another startingOffsets"
            )
        return cut_from(found, topology)

    def topology(self, reader: TopicReader, topic: str, *, fresh: bool = False) -> Topology:
        """Return the current topology of one topic; retries as often as the options say."""
        for _ in range(self.options.retries):
            try:
                return reader.topology(topic, fresh=fresh)
            except AnabranchError as error:
                if not error.retryable:
                    raise
                log.info("retrying the lookup of %s after: %s", topic, error)
                time.sleep(self.options.retry_interval_s)
        return reader.topology(topic, fresh=fresh)

    def lost(self, text: str) -> None:
        """Raise DataLossError, or log the loss and return, as the options say."""
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to continue with the remaining messages")
        log.warning("%s; continuing, because failOnDataLoss is false", text)


def requested(request: Start | None, topic: str, otherwise: str) -> Any:
    """Return the request for one topic; `otherwise` for a topic that the request does not name."""
    at = otherwise if request is None else request.at
    if isinstance(at, Cut):
        return at.topics.get(topic, otherwise)
    return at
