"""The clients and subscriptions of tenants and topics at all brokers: each broker answers for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from anabranch.aio import KeyedLocks
from anabranch.broker.catalog.classic_topics import log_names
from anabranch.broker.catalog.stores import Stores
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.remote_calls import Port
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.broker.serving.rates.usage import TenantUse, TopicUse, Usage, merged, merged_tenant
from anabranch.errors import AnabranchError
from anabranch.metadata import records
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName, encode_part

TARGET: Final = "usage"

FRESH_S: Final = 0.1
"""An answer of the other brokers counts for this long, so that many requests at once ask once."""

ANSWER_S: Final = 2.0
"""A broker that has not answered by then counts as one without clients."""

REPORT_S: Final = 5.0
"""A report of demands counts for this long; a broker with limited rates reports more often."""

KEPT_MAX: Final = 1000

T = TypeVar("T")


class LocalUsage:
    """Answers for the clients and stores of this broker."""

    def __init__(self, usage: Usage, topics: TopicStore, stores: Stores) -> None:
        self._usage = usage
        self._topics = topics
        self._stores = stores
        self._reports: dict[int, tuple[float, Mapping[str, float]]] = {}

    async def topic(self, name: str) -> TopicUse:
        return self._usage.of_topic(TopicName.parse(name))

    async def tenant(self, tenant: str) -> TenantUse:
        return self._usage.of_tenant(tenant)

    async def classic_subscriptions(self, tenant: str) -> int:
        """Durable subscriptions of the tenant's classic topics in the stores of this broker."""
        count = 0
        for namespace in await self._topics.namespaces.of_tenant(tenant):
            async for name, record in self._topics.walk_classic(namespace):
                for log_name in () if record.migrated else log_names(name, record.partitions):
                    log = self._stores.get(str(log_name))
                    count += 0 if log is None else sum(one != COMPACTION for one in log.cursors)
        return count

    async def report_demands(self, broker: int, demands: Mapping[str, float]) -> None:
        """Note the demand of each rate at another broker, so that this broker can take its share."""
        self._reports[broker] = (asyncio.get_running_loop().time(), demands)

    def demands_of(self, broker: int) -> Mapping[str, float]:
        """The demands that a broker reported last; none if that was long ago."""
        reported_s, demands = self._reports.get(broker, (0.0, {}))
        return demands if asyncio.get_running_loop().time() < reported_s + REPORT_S else {}


USAGE: Final = Port(LocalUsage)


class UsageOfAll:
    """Adds up the answers of all brokers. Answers may be a moment old."""

    def __init__(
        self, me: int, directory: Directory, local: LocalUsage, at: Callable[[BrokerRecord], LocalUsage]
    ) -> None:
        self._me = me
        self._directory = directory
        self.local = local
        self._at = at
        self._kept: dict[tuple[str, str], tuple[float, list[Any]]] = {}
        self._locks = KeyedLocks()

    def others(self) -> Sequence[tuple[int, LocalUsage]]:
        """The other living brokers."""
        brokers = sorted(self._directory.brokers.items())
        return [(number, self._at(record)) for number, record in brokers if number != self._me]

    async def topic(self, name: TopicName) -> Callable[[TopicUse], TopicUse]:
        """A function that adds the clients of a topic at the other brokers to those at this one."""
        if not name.is_segment and not name.is_scalable:
            return lambda here: here
        topic = str(name.topic)
        found = await self._recent("topic", topic, lambda broker: broker.topic(topic))
        return lambda here: merged((here, *found))

    async def tenant(self, tenant: str) -> Callable[[TenantUse], TenantUse]:
        """As `topic`, for the clients of a tenant."""
        found = await self._recent("tenant", tenant, lambda broker: broker.tenant(tenant))
        return lambda here: merged_tenant((here, *found))

    async def subscriptions(self, tenant: str, topics: TopicStore) -> int:
        """The durable subscriptions of a tenant."""
        count = await self.local.classic_subscriptions(tenant)
        count += sum(await self._ask(lambda broker: broker.classic_subscriptions(tenant)))
        async for parts, _ in topics.walk(f"{records.TOPICS}/{encode_part(tenant)}"):
            # namespace/topic/subscriptions/subscription
            count += len(parts) == 4
        return count

    async def _recent(self, what: str, name: str, call: Callable[[LocalUsage], Awaitable[T]]) -> list[T]:
        """The answers of the other brokers, at most `FRESH_S` old."""
        key, loop = (what, name), asyncio.get_running_loop()
        async with self._locks.held(key):
            kept = self._kept.get(key)
            if kept is not None and loop.time() - kept[0] < FRESH_S:
                return kept[1]
            found = await self._ask(call)
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[key] = (loop.time(), found)
            return found

    async def _ask(self, call: Callable[[LocalUsage], Awaitable[T]]) -> list[T]:
        answers = await asyncio.gather(*(answer(call(broker)) for _, broker in self.others()))
        return [found for given in answers for found in given]


async def answer(call: Awaitable[T]) -> list[T]:
    """The answer of another broker; none if the broker does not answer in time."""
    with suppress(AnabranchError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            return [await call]
    return []
