"""The port to the engine: the servers that hold the messages of segments and classic topics.

The embedded engine (`embedded.py`) keeps messages in the stores of these brokers. Under a control process an
Apache Pulsar cluster keeps them (`control/pulsar_engine.py`), and the broker only leads topics. Code that
depends on the difference calls this port; nothing may ask which engine it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from google.protobuf.message import Message

from anabranch.controller.ports.segments import Segments
from anabranch.metadata.records import InitialPosition
from anabranch.metadata.topics import ClassicDomain
from anabranch.model.layout import Segment
from anabranch.model.names import Place, TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb


class LogAddress(NamedTuple):
    """The addresses of the server that holds a log. An address is empty if there is no such port."""

    url: str
    url_tls: str = ""


class LogLocation(NamedTuple):
    """The place of a segment's log, as layouts tell clients."""

    address: LogAddress | None
    """None if the server is not known now; the client looks the log up, or waits for the next layout."""
    topic: str | None = None
    """The topic that holds the segment, if it has another name than the segment."""
    keeps_range: bool = False
    """Whether `topic` holds only keys of the segment's range, as a classic topic does not."""


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """The offers and limits of an engine, as values that do not change while a broker runs."""

    server_version: str
    """The version in CONNECTED."""
    features: pb.FeatureFlags
    """The features of Pulsar in CONNECTED."""
    refused: frozenset[type[Message]] = frozenset()
    """Commands that clients must send to the servers of the engine, and not to this broker."""
    shares_segments: bool = True
    """Whether consumers of an ordered subscription may share a segment by its buckets."""
    default_start: InitialPosition | None = None
    """Start of a new subscription if a registering client names none; None if the client names it later,
    when it attaches to the segments."""
    fixed_workers: bool = True
    """Whether worker n owns store n. If not, any process may take any store, and no process is expected."""
    admin_url: str = ""
    """The admin API that answers calls about classic topics; empty if this broker's own does."""


class ClassicLogs(Protocol):
    """The logs of classic topics, as far as a migration to a scalable topic needs them."""

    async def places(self, name: TopicName) -> Sequence[Place]:
        """The logs of a topic: one for each partition, or one; TopicNotFoundError."""

    async def check_migratable(self, place: Place) -> None:
        """Raise ConflictError if the log cannot become a segment."""

    async def old_clients(self, place: Place) -> Sequence[str]:
        """The names of connected clients that would not follow the log to a scalable topic."""

    async def kinds(self, place: Place) -> Mapping[str, str]:
        """The kind of each durable subscription: STREAM or QUEUE."""

    async def create_subscription(self, place: Place, subscription: str, start: object) -> None:
        """Create a subscription, at "earliest" or at the end."""

    async def mark_migrated(self, name: TopicName) -> None:
        """Let no client create a log of the topic any more; existing logs stay."""


class Engine(Protocol):
    """Holds the messages of segments and classic topics."""

    @property
    def traits(self) -> EngineTraits: ...

    @property
    def segments(self) -> Segments:
        """The segments of all topics, wherever they are."""

    def is_sound(self, place: Place) -> bool:
        """Whether the log of an active segment takes entries, as far as this process knows at once."""

    def check_right(self) -> None:
        """Raise ServiceNotReadyError unless this process may answer for the topics that it leads."""

    def check_seek(self, ack_set: Sequence[int]) -> None:
        """Raise NotAllowedError if `ack_set` names a message inside a batch, where no cursor can stand."""

    def check_rebucket(self) -> None:
        """Raise NotAllowedError if other buckets of a segment would change nothing."""

    async def check_unused(self, places: Sequence[Place], subscription: str) -> None:
        """Raise MetadataError if consumers that the leader of their topic cannot know use a subscription."""

    def topic_of(self, segment: str) -> str:
        """The name under which clients attach to a segment; any other name is returned as it is."""

    def locate(self, topic: TopicName, segment: Segment) -> LogLocation:
        """Return the place of a segment's log as far as it is known without waiting."""

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when `locate` has other answers although no broker or store has changed.

        Returns the undo.
        """

    async def address(self, name: TopicName) -> LogAddress:
        """The server that holds a segment or a classic topic, or that would create or refuse it."""

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """The number of partitions of a classic topic, 0 without any; TopicNotFoundError.

        With `create` a missing topic is created if its namespace allows that.
        """

    async def partitions_to_watch(self, name: TopicName, *, create: bool) -> int:
        """As `partitions`; without `create`, 0 for a missing topic too, because it may appear later."""

    async def topics(self, namespace: str, domains: Sequence[ClassicDomain]) -> Sequence[TopicName]:
        """The classic and live topics of a namespace; NotAllowedError for domains that are not listed."""

    async def ensure_sink_log(
        self, name: TopicName, may_create: Callable[[TopicName], Awaitable[bool]]
    ) -> None:
        """Create the log of a Spark sink if attaching to it would not; other names are left alone."""

    def classic_logs(self, served: ClassicLogs) -> ClassicLogs:
        """The logs that a migration takes over; `served` are those that these brokers serve themselves."""
