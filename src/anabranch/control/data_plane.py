"""The data plane of a control process: the topics of an Apache Pulsar cluster and their brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from anabranch.aio import TaskRegistry
from anabranch.broker.cluster.data_plane import LogAddress
from anabranch.control.cluster_admin import ClusterAdmin
from anabranch.control.pulsar_segments import PulsarSegments
from anabranch.errors import AnabranchError, TopicNotFoundError
from anabranch.model.names import Place, TopicName
from anabranch.model.pulsar_names import pulsar_topic, segment_in
from anabranch.protocol.properties import MANAGED

_logger = logging.getLogger(__name__)

FRESH_S: Final = 5.0
"""How long an address is used before the cluster is asked again; a broker may be gone meanwhile."""

KNOWN_MAX: Final = 100_000
"""Topics whose address is remembered; the ones that were asked for first are forgotten first."""


class _Known(NamedTuple):
    address: LogAddress
    until_s: float


class PulsarDataPlane:
    """The brokers of topics, remembered for a while."""

    def __init__(
        self,
        admin: ClusterAdmin,
        segments: PulsarSegments,
        tasks: TaskRegistry,
        admin_url: str = "",
        check_right: Callable[[], None] = lambda: None,
    ) -> None:
        self.segments = segments
        self.admin_url = admin_url
        self.check_right = check_right
        self._admin = admin
        self._tasks = tasks
        self._known: dict[TopicName, _Known] = {}
        self._asking: set[TopicName] = set()
        self._watchers: dict[object, Callable[[], None]] = {}

    def topic_of(self, segment: TopicName) -> TopicName:
        return pulsar_topic(segment)

    def known_address(self, topic: TopicName) -> LogAddress | None:
        """The last known address; an old one is returned too, and asked for again in the background."""
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

    async def address(self, topic: TopicName) -> LogAddress:
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

    async def partitions(self, topic: TopicName) -> int:
        return await self._admin.partitions(topic)

    async def topics(self, namespace: str) -> list[TopicName]:
        names = [TopicName.parse(text) for text in sorted(await self._admin.topics(namespace))]
        return [name for name in names if segment_in(name) is None]

    async def create_log(self, topic: TopicName, subscription: str) -> None:
        try:
            found = await self._admin.internals(topic)
        except TopicNotFoundError:
            await self._admin.create(topic, {})
        else:
            if subscription in found.cursors:
                return
        await self._admin.create_subscription(topic, subscription, earliest=True)

    async def kinds(self, place: Place) -> Mapping[str, str]:
        found = (await self._admin.stats(place.name)).subscriptions
        durable = {name: one.type for name, one in found.items() if one.is_durable}
        return {name: "QUEUE" if kind == "Shared" else "STREAM" for name, kind in durable.items()}

    async def old_clients(self, place: Place) -> Sequence[str]:
        stats = await self._admin.stats(place.name)
        consumers = (client for one in stats.subscriptions.values() for client in one.consumers)
        return sorted(
            client.producer_name or client.consumer_name
            for client in (*stats.publishers, *consumers)
            if client.metadata.get(MANAGED) != "true"
        )

    async def create_subscription(self, place: Place, subscription: str, start: object) -> None:
        await self._admin.create_subscription(place.name, subscription, earliest=start == "earliest")

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
