"""A cluster's admin API for one session: calls that change something are sent only while it lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from anabranch.control.cluster_admin import ClusterAdmin, PulsarInternals, PulsarOwner, PulsarStats
from anabranch.model.names import TopicName


class LeasedAdmin:
    """Asks `check` before each change; it raises if this process may not act for its topics now."""

    def __init__(self, admin: ClusterAdmin, check: Callable[[], None]) -> None:
        self._admin = admin
        self._check = check

    async def create(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        self._check()
        await self._admin.create(topic, properties)

    async def retain(self, topic: TopicName, minutes: int) -> None:
        self._check()
        await self._admin.retain(topic, minutes)

    async def recognise_repetitions(self, topic: TopicName) -> None:
        self._check()
        await self._admin.recognise_repetitions(topic)

    async def terminate(self, topic: TopicName) -> None:
        self._check()
        await self._admin.terminate(topic)

    async def unload(self, topic: TopicName) -> None:
        self._check()
        await self._admin.unload(topic)

    async def delete(self, topic: TopicName) -> None:
        self._check()
        await self._admin.delete(topic)

    async def set_properties(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        self._check()
        await self._admin.set_properties(topic, properties)

    async def create_subscription(self, topic: TopicName, name: str, *, earliest: bool) -> bool:
        self._check()
        return await self._admin.create_subscription(topic, name, earliest=earliest)

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        self._check()
        await self._admin.delete_subscription(topic, name)

    async def seek_to_time(self, topic: TopicName, name: str, timestamp_ms: int) -> None:
        self._check()
        await self._admin.seek_to_time(topic, name, timestamp_ms)

    async def seek_to_entry(self, topic: TopicName, name: str, ledger: int, entry: int) -> None:
        self._check()
        await self._admin.seek_to_entry(topic, name, ledger, entry)

    async def skip_all(self, topic: TopicName, name: str) -> None:
        self._check()
        await self._admin.skip_all(topic, name)

    async def properties(self, topic: TopicName) -> dict[str, str]:
        return await self._admin.properties(topic)

    async def stats(self, topic: TopicName, *, precise: bool = False) -> PulsarStats:
        return await self._admin.stats(topic, precise=precise)

    async def internals(self, topic: TopicName) -> PulsarInternals:
        return await self._admin.internals(topic)

    async def owner(self, topic: TopicName) -> PulsarOwner:
        return await self._admin.owner(topic)

    async def partitions(self, topic: TopicName) -> int:
        return await self._admin.partitions(topic)

    async def topics(self, namespace: str) -> list[str]:
        return await self._admin.topics(namespace)
