"""Admits producers, consumers and subscriptions within the quotas of their namespace and tenant.

A client counts from its admission on, so concurrent requests at one broker never exceed a limit. Requests
that several brokers admit at the same moment may exceed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from anabranch.broker.catalog.quotas import QuotaBook
from anabranch.broker.catalog.stores import Stores
from anabranch.broker.cluster.decide.quota_limits import (
    NewClient,
    limits_clients,
    reached_in_tenant,
    reached_in_topic,
)
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.remote_calls import Port
from anabranch.broker.cluster.usage_of_all import TARGET, USAGE, LocalUsage, UsageOfAll, answer
from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.rates.rate_gates import RateGate
from anabranch.broker.serving.rates.throttles import Throttles
from anabranch.broker.serving.rates.usage import Usage, UsingConsumer, topic_of
from anabranch.errors import ConsumerBusyError, ProducerBusyError
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName
from anabranch.model.token_bucket import divide

ROUND_S: Final = 0.5
IDLE_S: Final = 2.0
"""Pause while no rate is limited."""

ServeEach = Callable[[str, Port[LocalUsage], LocalUsage], Callable[[BrokerRecord], LocalUsage]]


class QuotaGuard:
    """Compares the clients of all brokers with the limits, only where there is a limit."""

    def __init__(self, book: QuotaBook, usage: Usage, topics: TopicStore, stores: Stores) -> None:
        self.book = book
        self.usage = usage
        self._topics = topics
        self._local = LocalUsage(usage, topics, stores)

    def joined(self, me: int, directory: Directory, serve_each: ServeEach) -> QuotaGuard:
        """Answer the other brokers, and ask them from now on; `me` is the number of this broker."""
        at = serve_each(TARGET, USAGE, self._local)
        self.everywhere = UsageOfAll(me, directory, self._local, at)
        self._shares = RateShares(me, self.book.throttles, self.everywhere)
        return self

    async def run(self) -> None:
        """Follow changes of quotas, and the loads of the other brokers, for as long as the broker runs."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.book.follow())
            tasks.create_task(self._shares.run())

    async def use_of(self, tenant: str) -> dict[str, int]:
        """How much of each quota a tenant uses now, over all brokers."""
        at_all = (await self.everywhere.tenant(tenant))(self.usage.of_tenant(tenant))
        room = self._topics.room
        return {
            "connections": at_all.connections,
            "namespaces": len(await self._topics.namespaces.of_tenant(tenant)),
            "topics": 0 if room is None else await room.count(tenant),
            "subscriptions": await self.everywhere.subscriptions(tenant, self._topics),
            "producers": at_all.producers,
            "consumers": at_all.consumers,
        }

    @contextmanager
    def attaching(self, client: object) -> Iterator[None]:
        """Stop counting an admitted client if it cannot be attached."""
        try:
            yield
        except BaseException:
            self.usage.discard(client)
            raise

    async def admit_producer(self, log: TopicName, producer: ServedProducer) -> None:
        """Count a producer from now on; ProducerBusyError if a quota leaves no room."""
        await self._admit(log, NewClient(topic_of(log), "producer", producer.bound_name), producer.link)
        self.usage.add_producer(log, producer)

    async def admit_consumer(self, log: TopicName, subscription: str, consumer: ServedConsumer) -> None:
        """Count a consumer from now on; ConsumerBusyError if a quota leaves no room."""
        if consumer.options.member is None:
            new = NewClient(topic_of(log), "consumer", consumer.name, subscription)
            await self._admit(log, new, consumer.link)
        self.usage.add_consumer(log, subscription, consumer)

    async def admit_member(self, topic: TopicName, subscription: str, member: UsingConsumer) -> None:
        """As `admit_consumer`, for a consumer that registers; its segments need no further admission."""
        new = NewClient(topic, "consumer", member.name, subscription)
        await self._admit(topic, new, member.link)
        self.usage.add_consumer(topic, subscription, member)

    async def _admit(self, log: TopicName, new: NewClient, link: object) -> None:
        quotas, tenant = self.book.of_topic(log), self.book.of_tenant(log.tenant)
        by_topic, by_tenant = limits_clients(new.kind, quotas, tenant)
        if not by_topic and not by_tenant:
            return
        in_topic = await self.everywhere.topic(log) if by_topic else None
        in_tenant = await self.everywhere.tenant(log.tenant) if by_tenant else None
        # From here to the caller's `add` nothing waits, so no other request takes the same room.
        # A registered consumer, which asks for a whole topic, has its name for itself.
        attached = 0 if log.is_scalable else self.usage.attached(log, new.subscription, new.name)
        new = new._replace(attached=attached, is_connected=self.usage.uses(log.tenant, link))
        reached = None
        if in_topic is not None:
            reached = reached_in_topic(new, in_topic(self.usage.of_topic(log)), quotas)
        if in_tenant is not None and reached is None:
            reached = reached_in_tenant(new, in_tenant(self.usage.of_tenant(log.tenant)), tenant)
        if reached is not None:
            busy = ProducerBusyError if new.kind == "producer" else ConsumerBusyError
            self.book.refuse(reached.policy, log.tenant, reached.reason, busy)

    async def admit_classic(self, log: ServedLog, subscription: str) -> None:
        """As `admit_subscription`, for a durable subscription of a classic topic, unless it exists.

        A caller that makes the subscription at once takes the room that this call found.
        """
        if not log.name.is_segment and subscription not in log.subscriptions:
            await self._admit_in_tenant(log.name)
            known = sum(one.durable for one in log.subscriptions.values())
            self.book.check_subscriptions(log.name, known)

    async def admit_subscription(self, topic: TopicName, known: int) -> None:
        """Admit one more subscription to a topic with `known` durable ones. Raises LimitExceededError."""
        self.book.check_subscriptions(topic, known)
        await self._admit_in_tenant(topic)

    async def _admit_in_tenant(self, topic: TopicName) -> None:
        most = self.book.of_tenant(topic.tenant).subscriptions
        if most:
            count = await self.everywhere.subscriptions(topic.tenant, self._topics)
            if count >= most:
                text = f"tenant {topic.tenant} has {count} subscriptions: maxSubscriptions={most}"
                self.book.refuse("maxSubscriptions", topic.tenant, text)


class RateShares:
    """Divides the rates of topics and tenants among the brokers that serve them, by their loads.

    Each broker tells the others how much of each rate it used, and all divide the rate by the same rule. The
    shares follow the load within about two rounds; meanwhile their sum may differ from the whole rate.
    """

    def __init__(self, me: int, throttles: Throttles, everywhere: UsageOfAll) -> None:
        self._me = me
        self._throttles = throttles
        self._everywhere = everywhere
        self._is_limited = False
        throttles.first_share = self._first

    async def run(self) -> None:
        """Exchange loads and follow them, for as long as the broker runs."""
        while True:
            await asyncio.sleep(ROUND_S if self._is_limited else IDLE_S)
            await self.follow_loads()

    async def follow_loads(self) -> None:
        """Report the loads of this broker, and take its shares by the loads that are known."""
        gates = {gate.key: gate for gate in self._throttles.gates() if gate.shared}
        self._is_limited = bool(gates)
        if not gates:
            return
        others = self._everywhere.others()
        demands = {key: gate.take_demand() for key, gate in gates.items()}
        await asyncio.gather(*(answer(broker.report_demands(self._me, demands)) for _, broker in others))
        known = [self._everywhere.local.demands_of(number) for number, _ in others]
        for key, gate in gates.items():
            _take_share(gate, [demands[key], *(report[key] for report in known if key in report)])

    def _first(self) -> float:
        return 1.0 / (1 + len(self._everywhere.others()))


def _take_share(gate: RateGate, demands: list[float]) -> None:
    gate.change(gate.rate, divide(demands)[0])
