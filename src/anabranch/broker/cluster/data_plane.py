"""Apache Pulsar in place of the logs of this broker: where clients find the messages of segments.

A broker with a data plane leads topics and has no logs. The adapter is in the package `control`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from anabranch.controller.ports.segments import Segments
from anabranch.model.names import Place, TopicName


class LogAddress(NamedTuple):
    """The addresses of the server that holds a log."""

    url: str
    url_tls: str = ""


class DataPlane(Protocol):
    """The cluster that holds the messages of all segments."""

    @property
    def segments(self) -> Segments: ...

    @property
    def admin_url(self) -> str:
        """The admin API of the cluster, for calls about its own topics."""

    @property
    def check_right(self) -> Callable[[], None]:
        """Raises ServiceNotReadyError unless this process may answer for the topics that it leads."""

    def topic_of(self, segment: TopicName) -> TopicName:
        """The topic of the cluster that holds a segment; any other name is returned as it is."""

    def known_address(self, topic: TopicName) -> LogAddress | None:
        """The server that held the topic a moment ago; None if the cluster has to be asked."""

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when more addresses are known, or others; returns the undo."""

    async def address(self, topic: TopicName) -> LogAddress:
        """Ask the cluster for the server that holds the topic."""

    async def partitions(self, topic: TopicName) -> int:
        """The number of partitions of a topic, 0 without any; TopicNotFoundError."""

    async def topics(self, namespace: str) -> list[TopicName]:
        """The persistent topics of a namespace, without those that hold segments."""

    async def create_log(self, topic: TopicName, subscription: str) -> None:
        """Create a classic topic whose messages a subscription keeps from the first on; repeating is fine."""

    async def kinds(self, place: Place) -> Mapping[str, str]:
        """The kind of each durable subscription of a topic: STREAM or QUEUE."""

    async def old_clients(self, place: Place) -> Sequence[str]:
        """The names of connected clients that would not follow a classic topic that is migrated."""

    async def create_subscription(self, place: Place, subscription: str, start: object) -> None:
        """Create a subscription on a classic topic, at "earliest" or at the end."""
