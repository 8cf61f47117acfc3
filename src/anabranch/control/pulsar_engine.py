"""The Apache Pulsar engine: segments and classic topics are topics of a cluster, served by its brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from anabranch.aio import TaskRegistry, together
from anabranch.broker.catalog.classic_topics import log_names
from anabranch.broker.engine.port import ClassicLogs, EngineTraits, LogAddress, LogLocation
from anabranch.control.cluster_admin import ClusterAdmin
from anabranch.control.pulsar_segments import PulsarSegments, check_aim
from anabranch.errors import AnabranchError, MetadataError, NotAllowedError, TopicNotFoundError
from anabranch.metadata.topics import ClassicDomain
from anabranch.model.layout import Segment
from anabranch.model.names import Place, TopicName
from anabranch.model.pulsar_names import pulsar_topic, segment_in
from anabranch.model.sink_names import SINK_SUBSCRIPTION, sink_of_log
from anabranch.protocol.connection import CONTROL_VERSION
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import MANAGED

_logger = logging.getLogger(__name__)

FRESH_S: Final = 5.0
"""How long an address is used before the cluster is asked again; a broker may be gone meanwhile."""

KNOWN_MAX: Final = 100_000
"""Topics whose address is remembered; the ones that were asked for first are forgotten first."""


def pulsar_traits(admin_url: str = "") -> EngineTraits:
    """The traits of a cluster whose admin API is at `admin_url`."""
    return EngineTraits(
        server_version=CONTROL_VERSION,
        # Without topic watchers: the cluster does not report new classic topics, so clients poll for them.
        features=pb.FeatureFlags(
            supports_scalable_topics=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
        ),
        refused=frozenset(
            (
                pb.CommandProducer,
                pb.CommandSubscribe,
                pb.CommandGetOrCreateSchema,
                pb.CommandGetSchema,
                pb.CommandWatchTopicList,
            )
        ),
        shares_segments=False,
        # Pulsar's brokers do not pass on where a client wants to start when it attaches.
        default_start="earliest",
        fixed_workers=False,
        admin_url=admin_url,
    )


class _Known(NamedTuple):
    address: LogAddress
    until_s: float


class PulsarEngine:
    """The topics of one cluster. The brokers that serve them are remembered for a while."""

    def __init__(
        self,
        admin: ClusterAdmin,
        segments: PulsarSegments,
        tasks: TaskRegistry,
        admin_url: str = "",
        check_right: Callable[[], None] = lambda: None,
    ) -> None:
        self.segments = segments
        self.classic = PulsarClassicLogs(admin)
        self.traits = pulsar_traits(admin_url)
        self._check_right = check_right
        self._admin = admin
        self._tasks = tasks
        self._known: dict[TopicName, _Known] = {}
        self._asking: set[TopicName] = set()
        self._watchers: dict[object, Callable[[], None]] = {}

    def is_sound(self, place: Place) -> bool:
        """Return True, because only a call to the cluster could tell."""
        return True

    def check_right(self) -> None:
        self._check_right()

    def check_seek(self, ack_set: Sequence[int]) -> None:
        check_aim(ack_set)

    def check_rebucket(self) -> None:
        raise NotAllowedError(
            "Apache Pulsar does not share a segment by buckets, and other buckets would only replace the "
            "segment; split it instead"
        )

    async def check_unused(self, places: Sequence[Place], subscription: str) -> None:
        if any(await together(self.segments.consumers(place, subscription) for place in places)):
            raise MetadataError(f"subscription {subscription} has other consumers")

    def topic_of(self, segment: str) -> str:
        return str(pulsar_topic(TopicName.parse(segment)))

    def locate(self, topic: TopicName, segment: Segment) -> LogLocation:
        """Return the last known address, even an old one, and ask for it again in the background."""
        held_by = segment.legacy_topic
        if held_by is None:
            held_by = str(pulsar_topic(topic.segment_name(segment.range, segment.id)))
        found = self._known_address(TopicName.parse(held_by))
        address = found if found is not None and found.url else None
        return LogLocation(address, held_by, keeps_range=segment.legacy_topic is None)

    def _known_address(self, topic: TopicName) -> LogAddress | None:
        found = self._known.get(topic)
        if found is None or found.until_s <= asyncio.get_running_loop().time():
            self._ask_soon(topic)
        return None if found is None else found.address

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._watchers[key] = changed

        def undo() -> None:
            self._watchers.pop(key, None)

        return undo

    async def address(self, name: TopicName) -> LogAddress:
        topic = pulsar_topic(name)
        owner = await self._admin.owner(topic)
        found = LogAddress(owner.url, owner.url_tls)
        before = self._known.pop(topic, None)
        self._known[topic] = _Known(found, asyncio.get_running_loop().time() + FRESH_S)
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        if before is None or before.address != found:
            for changed in tuple(self._watchers.values()):
                changed()
        return found

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """Ask the cluster. A missing topic is never created from here."""
        return await self._admin.partitions(name)

    async def partitions_to_watch(self, name: TopicName, *, create: bool) -> int:
        with suppress(TopicNotFoundError):
            return await self._admin.partitions(name)
        return 0

    async def topics(self, namespace: str, domains: Sequence[ClassicDomain]) -> Sequence[TopicName]:
        """Return the persistent topics, without those that hold segments."""
        if tuple(domains) != ("persistent",):
            raise NotAllowedError(
                "this process lists persistent topics only; ask Apache Pulsar for the others"
            )
        names = [TopicName.parse(text) for text in sorted(await self._admin.topics(namespace))]
        return [name for name in names if segment_in(name) is None]

    async def ensure_sink_log(
        self, name: TopicName, may_create: Callable[[TopicName], Awaitable[bool]]
    ) -> None:
        """Create the log of a sink, with a subscription that keeps its messages from the first on.

        The cluster must create no topic by itself, because a client could then revive the topic of a segment.
        So only this call creates the log.
        """
        if sink_of_log(str(name)) is None or not await may_create(name):
            return
        try:
            found = await self._admin.internals(name)
        except TopicNotFoundError:
            await self._admin.create(name, {})
        else:
            if SINK_SUBSCRIPTION in found.cursors:
                return
        await self._admin.create_subscription(name, SINK_SUBSCRIPTION, earliest=True)

    def classic_logs(self, served: ClassicLogs) -> ClassicLogs:
        return self.classic

    def _ask_soon(self, topic: TopicName) -> None:
        if topic not in self._asking:
            self._asking.add(topic)
            self._tasks.spawn(self._ask(topic), f"look up {topic}")

    async def _ask(self, topic: TopicName) -> None:
        try:
            await self.address(topic)
        except AnabranchError as error:
            _logger.info("the broker of %s is not known: %s", topic, error)
        finally:
            self._asking.discard(topic)


class PulsarClassicLogs:
    """The classic topics of one cluster, for a migration."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin

    async def places(self, name: TopicName) -> Sequence[Place]:
        """Return the topic or its partitions. They are in no store, so all get number 0."""
        return [Place(part, 0) for part in log_names(name, await self._admin.partitions(name))]

    async def check_migratable(self, place: Place) -> None:
        """Do nothing: this process has no logs to look at."""

    async def old_clients(self, place: Place) -> Sequence[str]:
        stats = await self._admin.stats(place.name)
        consumers = (client for one in stats.subscriptions.values() for client in one.consumers)
        return sorted(
            client.producer_name or client.consumer_name
            for client in (*stats.publishers, *consumers)
            if client.metadata.get(MANAGED) != "true"
        )

    async def kinds(self, place: Place) -> Mapping[str, str]:
        found = (await self._admin.stats(place.name)).subscriptions
        durable = {name: one.type for name, one in found.items() if one.is_durable}
        return {name: "QUEUE" if kind == "Shared" else "STREAM" for name, kind in durable.items()}

    async def create_subscription(self, place: Place, subscription: str, start: object) -> None:
        await self._admin.create_subscription(place.name, subscription, earliest=start == "earliest")

    async def mark_migrated(self, name: TopicName) -> None:
        """Do nothing: topics of the cluster have no record here."""
