"""Chooses the reader that fits the broker, when the first call connects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from anabranch.spark.decide.offsets import TopicCut
from anabranch.spark.decide.topic_names import TopicPattern
from anabranch.spark.decide.topology import Slice, Topology
from anabranch.spark.live import LiveReader, Session
from anabranch.spark.pulsar_reader import PulsarReader
from anabranch.spark.topics import StoredEntry, TopicReader

if TYPE_CHECKING:
    from anabranch.client.net.schemas import TopicSchema


class ReaderOfBroker:
    """The reading port over a session: by message index from our brokers, by place from Apache Pulsar."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._chosen: TopicReader | None = None

    def topology(self, topic: str, *, fresh: bool = False) -> Topology:
        return self._reader().topology(topic, fresh=fresh)

    def topics(self, pattern: TopicPattern) -> Sequence[str]:
        return self._reader().topics(pattern)

    def places_at(self, topic: str, topology: Topology, time_ms: int) -> Mapping[int, int]:
        return self._reader().places_at(topic, topology, time_ms)

    def places_of(self, topic: str, topology: Topology, subscription: str) -> Mapping[int, int] | None:
        return self._reader().places_of(topic, topology, subscription)

    def mirror(self, topic: str, subscription: str, cut: TopicCut, topology: Topology) -> None:
        self._reader().mirror(topic, subscription, cut, topology)

    def read(self, slices: Sequence[Slice], timeout_s: float) -> Iterator[tuple[int, Sequence[StoredEntry]]]:
        return self._reader().read(slices, timeout_s)

    def stored_at(self, topic: str, positions: Mapping[int, int]) -> dict[int, int]:
        return self._reader().stored_at(topic, positions)

    def stored_after(self, topic: str, segments: Sequence[int], time_ms: int) -> dict[int, int]:
        return self._reader().stored_after(topic, segments, time_ms)

    def settle(self, topic: str, positions: Mapping[int, int]) -> Mapping[int, int]:
        return self._reader().settle(topic, positions)

    def schema(self, topic: str, version: bytes | None = None) -> TopicSchema | None:
        return self._session.run(self._session.client.topic_schema(topic, version=version))

    def schema_topic(self, topic: str, segment: int) -> str:
        return self._reader().schema_topic(topic, segment)

    def _reader(self) -> TopicReader:
        """Return the reader that fits the broker; connects on first use."""
        if self._chosen is None:
            if self._session.run(self._session.client.numbers_messages()):
                self._chosen = LiveReader(self._session)
            else:
                self._chosen = PulsarReader(self._session)
        return self._chosen
