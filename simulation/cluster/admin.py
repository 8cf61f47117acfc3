"""The admin API of a simulated Pulsar.

Pulsar's brokers are ours and serve classic topics; each call runs inside the process of the topic's owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from anabranch.broker.broker import Broker
from anabranch.broker.browsing.logs import Logs
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.control.cluster_admin import (
    PulsarClient,
    PulsarInternals,
    PulsarOwner,
    PulsarStats,
    PulsarSubscription,
)
from anabranch.errors import (
    ServiceNotReadyError,
    TopicExistsError,
    TopicNotFoundError,
)
from anabranch.metadata.records import ClassicTopicRecord, NamespaceRecord
from anabranch.model.names import Place, TopicName
from anabranch.model.policies.of_topics import topic_key, with_topic_policy
from simulation.cluster.calls import TRAVEL_S, SimCalls
from simulation.cluster.cluster import PORT

if TYPE_CHECKING:
    pass

T = TypeVar("T")

ANY = TopicName("persistent", "public", "default", "any")
"""A topic that does not exist, so that any broker answers."""


class SimAdmin(SimCalls):
    """The admin API of the simulated Pulsar, as one control process calls it."""

    async def create(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        async def record(broker: Broker) -> None:
            with suppress(TopicExistsError):
                await broker.classic.create(topic, 0, dict(properties))

        await self.call(topic, record, late=self.cluster.admin_trouble.late_creation)
        await self.call(topic, lambda broker: _check(broker, topic))

    async def retain(self, topic: TopicName, minutes: int) -> None:
        await self._set_policy(
            topic, "retention", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1 if minutes else 0}
        )

    async def recognise_repetitions(self, topic: TopicName) -> None:
        await self._set_policy(topic, "deduplicationEnabled", True)

    async def _set_policy(self, topic: TopicName, name: str, value: object) -> None:
        def change(record: NamespaceRecord) -> NamespaceRecord:
            policies = with_topic_policy(record.policies, topic_key(topic), name, value)
            return msgspec.structs.replace(record, policies=policies)

        async def work(broker: Broker) -> None:
            await _check(broker, topic)
            await broker.records.namespaces.update_namespace(topic.namespace_name, change)

        await self.call(topic, work)

    async def terminate(self, topic: TopicName) -> None:
        async def work(broker: Broker) -> None:
            log = (await _log(broker, topic)).log
            is_sealed = log.sealed
            await _existing(broker, topic, lambda logs, place: logs.seal(place))
            if not is_sealed:
                self.cluster.foreign.terminated(topic, log.extent.next_ordinal)

        await self.call(topic, work)

    async def unload(self, topic: TopicName) -> None:
        async def work(broker: Broker) -> None:
            self.cluster.foreign.unloaded(topic)
            await _existing(broker, topic, lambda logs, place: logs.unload(place))

        await self.call(topic, work)

    async def delete(self, topic: TopicName) -> None:
        async def work(broker: Broker) -> None:
            stats = await _stats(broker, topic)
            if stats.publishers or any(one.consumers for one in stats.subscriptions.values()):
                raise ServiceNotReadyError(f"{topic} still has clients")
            await Logs(broker).drop(await _place(broker, topic))
            await broker.records.delete_classic(topic)

        with suppress(TopicNotFoundError):
            await self.call(topic, work)

    async def properties(self, topic: TopicName) -> dict[str, str]:
        async def work(broker: Broker) -> dict[str, str]:
            return dict((await _record(broker, topic)).properties)

        return await self.call(topic, work)

    async def set_properties(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        async def work(broker: Broker) -> None:
            await _record(broker, topic)
            await broker.records.update_classic(
                topic,
                lambda found: msgspec.structs.replace(found, properties={**found.properties, **properties}),
            )

        await self.call(topic, work)

    async def stats(self, topic: TopicName, *, precise: bool = False) -> PulsarStats:
        return await self.call(topic, lambda broker: _stats(broker, topic))

    async def internals(self, topic: TopicName) -> PulsarInternals:
        async def work(broker: Broker) -> PulsarInternals:
            log = await _log(broker, topic)
            durable = {name: None for name, one in log.subscriptions.items() if one.durable}
            pending = self.cluster.foreign.pending.get(str(topic), 0)
            state, extent = "Terminated" if log.log.sealed else "LedgerOpened", log.log.extent
            return PulsarInternals(state, pending, durable, extent.next_ordinal - extent.first_ordinal)

        return await self.call(topic, work)

    async def create_subscription(self, topic: TopicName, name: str, *, earliest: bool) -> bool:
        async def work(broker: Broker) -> bool:
            if name in (await _log(broker, topic)).subscriptions:
                return False
            fails = earliest and self.cluster.foreign.interrupts_creation()
            start = "earliest" if earliest and not fails else "latest"
            await _existing(broker, topic, lambda logs, place: logs.create_subscription(place, name, start))
            if fails:
                self.cluster.counts["subscription half made"] += 1
                raise ServiceNotReadyError(f"{topic} could not move the subscription {name} to its start")
            return True

        return await self.subscription_call(topic, work)

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        with suppress(TopicNotFoundError):
            await self.subscription_call(
                topic,
                lambda broker: _existing(broker, topic, lambda logs, at: logs.delete_subscription(at, name)),
                late=self.cluster.admin_trouble.late_deletion,
            )

    async def seek_to_time(self, topic: TopicName, name: str, timestamp_ms: int) -> None:
        async def work(broker: Broker) -> None:
            self.cluster.sought(name)
            await _existing(broker, topic, lambda logs, place: logs.seek_to_time(place, name, timestamp_ms))

        await self.subscription_call(topic, work)

    async def seek_to_entry(self, topic: TopicName, name: str, ledger: int, entry: int) -> None:
        to = {"ledgerId": ledger, "entryId": entry}
        await self.subscription_call(
            topic, lambda broker: _existing(broker, topic, lambda logs, place: logs.seek(place, name, to))
        )

    async def skip_all(self, topic: TopicName, name: str) -> None:
        await self.subscription_call(
            topic,
            lambda broker: _existing(broker, topic, lambda logs, place: logs.seek(place, name, "latest")),
        )

    async def owner(self, topic: TopicName) -> PulsarOwner:
        await asyncio.sleep(self.rng.uniform(*TRAVEL_S))
        host = await self.cluster.owner_of(topic)
        if host is None:
            raise ServiceNotReadyError(f"no broker of Pulsar has {topic}")
        return PulsarOwner(f"pulsar://{host.name}:{PORT}")

    async def partitions(self, topic: TopicName) -> int:
        return 0

    async def topics(self, namespace: str) -> list[str]:
        async def work(broker: Broker) -> list[str]:
            return [str(name) for name in await broker.classic.list(namespace)]

        return await self.call(ANY, work)


async def _place(broker: Broker, topic: TopicName) -> Place:
    return Place(topic, await broker.classic.store_of(topic))


async def _record(broker: Broker, topic: TopicName) -> ClassicTopicRecord:
    found = await broker.records.find_classic(topic)
    if found is None:
        raise TopicNotFoundError(f"Pulsar has no topic {topic}")
    return found


async def _check(broker: Broker, topic: TopicName) -> None:
    await _record(broker, topic)
    await Logs(broker).make(await _place(broker, topic))


async def _log(broker: Broker, topic: TopicName) -> ServedLog:
    await _check(broker, topic)
    return broker.logs.require(topic)


async def _existing(
    broker: Broker, topic: TopicName, work: Callable[[Logs, Place], Awaitable[object]]
) -> None:
    await _check(broker, topic)
    await work(Logs(broker), await _place(broker, topic))


async def _stats(broker: Broker, topic: TopicName) -> PulsarStats:
    log = await _log(broker, topic)
    found = await Logs(broker).stats(await _place(broker, topic))
    return PulsarStats(
        storage_size=log.log.extent.size_bytes,
        publishers=[PulsarClient()] * len(found.publishers),
        subscriptions={
            name: PulsarSubscription(
                msg_backlog=one.msg_backlog, consumers=[PulsarClient()] * len(one.consumers)
            )
            for name, one in found.subscriptions.items()
        },
    )
