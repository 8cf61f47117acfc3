"""The embedded engine: messages are in the stores of these brokers, and each broker serves its own stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.broker.catalog.classic_topics import ClassicTopics
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.cluster.broker_lease import BrokerLease
from anabranch.broker.cluster.owners import TopicOwners
from anabranch.broker.cluster.routing import SEGMENTS, SEGMENTS_TARGET, Serve
from anabranch.broker.engine.local_segments import LocalSegments
from anabranch.broker.engine.port import ClassicLogs, EngineTraits, LogAddress, LogLocation
from anabranch.errors import TopicNotFoundError
from anabranch.metadata.topics import ClassicDomain, TopicStore
from anabranch.model.layout import Segment
from anabranch.model.names import Place, TopicName
from anabranch.protocol.connection import SERVER_VERSION
from anabranch.protocol.pb import pulsar_pb2 as pb

EMBEDDED: Final = EngineTraits(
    server_version=SERVER_VERSION,
    features=pb.FeatureFlags(
        supports_scalable_topics=True,
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_topic_watchers=True,
    ),
)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of a broker from which its engine is made."""

    records: TopicStore
    logs: ServedLogs
    segments: LocalSegments
    """The segments in the stores of this broker."""
    classic: ClassicTopics
    owners: TopicOwners
    lease: BrokerLease
    serve: Serve
    """Lets other brokers call an object; returns the port whose calls reach the owner of a place."""


class EmbeddedEngine:
    """The logs in the stores of all brokers of the cluster."""

    traits = EMBEDDED

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        local = parts.segments
        # Drain events reach the broker that leads the topic without a call to the owner.
        self.segments = parts.serve(SEGMENTS_TARGET, SEGMENTS, local, on_drained=local.on_drained)

    def is_sound(self, place: Place) -> bool:
        return self._parts.logs.is_sound(place)

    def check_right(self) -> None:
        """Do nothing: a broker leads for as long as it holds the lock of the topic's home store."""

    def check_seek(self, ack_set: Sequence[int]) -> None:
        """Do nothing: a cursor can stand between two messages of a batch."""

    def check_rebucket(self) -> None:
        """Do nothing: consumers share a segment by its buckets."""

    async def check_unused(self, places: Sequence[Place], subscription: str) -> None:
        """Do nothing: the owner of a log disconnects the consumers of a subscription that is deleted."""

    def topic_of(self, segment: str) -> str:
        return segment

    def locate(self, topic: TopicName, segment: Segment) -> LogLocation:
        owner = self._parts.owners.of_store(segment.store)
        address = None if owner is None else LogAddress(owner.url, owner.url_tls)
        return LogLocation(address, segment.legacy_topic)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Do nothing: logs move only when their store gets another owner, which the directory tells."""
        return lambda: None

    async def address(self, name: TopicName) -> LogAddress:
        broker = await self._parts.owners.owner_of(name) or self._parts.lease.me
        return LogAddress(broker.url, broker.url_tls)

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        if name.is_segment:
            return 0
        count = await self._partitions(name, create=create)
        if count is None and not (create and await self._parts.classic.may_create(name)):
            raise TopicNotFoundError(f"{name} does not exist")
        return count or 0

    async def partitions_to_watch(self, name: TopicName, *, create: bool) -> int:
        count = await self._partitions(name, create=create)
        if create and count is None:
            await self._parts.records.namespaces.load_namespace(name.namespace_name)
            if not await self._parts.classic.is_usable(name):
                raise TopicNotFoundError(f"{name} does not exist")
        return count or 0

    async def _partitions(self, name: TopicName, *, create: bool) -> int | None:
        topics = self._parts.classic
        return await (topics.partitions_for_use(name) if create else topics.partitions(name))

    async def topics(self, namespace: str, domains: Sequence[ClassicDomain]) -> Sequence[TopicName]:
        return [name for domain in domains for name in await self._parts.classic.list(namespace, domain)]

    async def ensure_sink_log(
        self, name: TopicName, may_create: Callable[[TopicName], Awaitable[bool]]
    ) -> None:
        """Do nothing: a log is created when a client attaches to it."""

    def classic_logs(self, served: ClassicLogs) -> ClassicLogs:
        return served
