"""The gates of all topics, subscriptions and tenants of one broker, made and changed as policies say.

A topic without limits has no gates, so it pays only for looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar
from weakref import WeakSet, WeakValueDictionary

from anabranch.broker.serving.rates.publish_credit import CreditTotals, PublishCredit
from anabranch.broker.serving.rates.rate_gates import PublishGate, PublishingLink, RateGate
from anabranch.model.names import TopicName
from anabranch.model.quotas import NO_NAMESPACE_QUOTAS, NO_TENANT_QUOTAS, NamespaceQuotas, TenantQuotas
from anabranch.model.token_bucket import Rate

G = TypeVar("G", bound=RateGate)

ALLOWANCE_S: Final = 0.1
"""A producer with credit may have as much under way as its rates allow in this time."""


class SubscriptionGates:
    """The gates that the deliveries of one subscription pass: its own, its topic's and its tenant's."""

    __slots__ = ("__weakref__", "all", "own")

    def __init__(self) -> None:
        self.own: RateGate | None = None
        self.all: tuple[RateGate, ...] = ()

    def must_wait(self, go_on: Callable[[], None]) -> bool:
        """Return whether deliveries have to wait; then `go_on` is called when they may go on."""
        for gate in self.all:
            if not gate.is_open:
                gate.let_wait(go_on, go_on)
                return True
        return False

    def forget(self, go_on: Callable[[], None]) -> None:
        """Let no gate wait for a subscription without consumers."""
        for gate in self.all:
            gate.forget(go_on)

    def entries_max(self, most: int) -> int:
        """How many entries may be delivered in one turn, at least 1."""
        return min((gate.messages_left(most) for gate in self.all), default=most)

    def delivered(self, messages: int, size: int) -> None:
        for gate in self.all:
            gate.take(messages, size)


class TopicThrottle:
    """The gates of one topic; all its segments at this broker share them."""

    __slots__ = (
        "__weakref__",
        "_credits",
        "_dispatch_gates",
        "_own_dispatch",
        "_own_publish",
        "_published",
        "_quotas",
        "_share",
        "_subscriptions",
        "is_relative",
        "limits_delivery",
        "name",
        "publish_gates",
    )

    def __init__(self, name: TopicName) -> None:
        self.name = name
        self.publish_gates: tuple[PublishGate, ...] = ()
        self.limits_delivery = False
        self.is_relative = False
        """Whether a rate of delivery follows the rate of publishing."""
        self._quotas = NO_NAMESPACE_QUOTAS
        self._own_publish: PublishGate | None = None
        self._own_dispatch: RateGate | None = None
        self._dispatch_gates: tuple[RateGate, ...] = ()
        self._subscriptions: WeakValueDictionary[str, SubscriptionGates] | None = None
        """Made when a delivery is first limited, because a broker may serve very many topics."""
        self._published: dict[TopicName, tuple[float, float]] = {}
        self._share = 1.0
        self._credits: WeakSet[PublishCredit] | None = None
        """The producers of our clients; made for the first one."""

    def charge(self, payer: PublishingLink, messages: int, size: int) -> None:
        """Count a published entry; its payer, a connection or the credit of a producer, may have to wait."""
        for gate in self.publish_gates:
            gate.charge(payer, messages, size)

    def join(self, payer: PublishingLink | PublishCredit) -> None:
        """Let the payer of a new producer wait in line, or each new one would exceed the rate a bit."""
        if isinstance(payer, PublishCredit):
            self._credits = self._credits or WeakSet()
            self._credits.add(payer)
        for gate in self.publish_gates:
            gate.stop(payer)

    def allowance(self) -> tuple[int | None, int | None]:
        """Return the bytes and messages that a producer may have under way without exceeding rates much."""
        found: list[int | None] = []
        for kind in (1, 0):
            rates = [(gate.rate[kind], gate.share / gate.rate.period_s) for gate in self.publish_gates]
            most = [int(limit * per_s * ALLOWANCE_S) for limit, per_s in rates if limit is not None]
            found.append(max(min(most), 1) if most else None)
        return found[0], found[1]

    def subscription(self, name: str) -> SubscriptionGates:
        """Return the gates of a subscription, shared by its segments; the caller keeps them alive."""
        if self._subscriptions is None:
            self._subscriptions = WeakValueDictionary()
        found = self._subscriptions.get(name)
        if found is None:
            found = self._subscriptions[name] = SubscriptionGates()
            self._apply_to(name, found)
        return found

    def apply(self, quotas: NamespaceQuotas, tenant: TenantGates, share: float) -> None:
        """Follow these limits from now on; new gates begin with this share of their rate."""
        self._quotas, self._share = quotas, share
        name, shared = str(self.name), self.name.is_scalable
        self._own_publish = _renewed(
            self._own_publish,
            quotas.publish,
            lambda rate: PublishGate("publishRate", name, rate, share, shared=shared),
        )
        self._own_dispatch = _renewed(
            self._own_dispatch,
            self._now(quotas.dispatch),
            lambda rate: RateGate("dispatchRate", name, rate, share, shared=shared),
        )
        limits = (quotas.dispatch, quotas.subscription_dispatch)
        self.is_relative = any(limit is not None and limit.relative for limit in limits)
        self.publish_gates = tuple(gate for gate in (self._own_publish, tenant.publish) if gate is not None)
        self._dispatch_gates = tuple(
            gate for gate in (self._own_dispatch, tenant.dispatch) if gate is not None
        )
        self.limits_delivery = bool(self._dispatch_gates) or quotas.subscription_dispatch is not None
        for sub, gates in self._served():
            self._apply_to(sub, gates)
        for credit in list(self._credits or ()):
            credit.rates_changed()

    def note_published(self, log: TopicName, messages_per_s: float, bytes_per_s: float) -> None:
        """Add the rate of publishing of one log to the rates of delivery that are relative to it."""
        self._published[log] = (messages_per_s, bytes_per_s)
        if self._own_dispatch is not None:
            self._own_dispatch.change(self._now(self._quotas.dispatch) or self._own_dispatch.rate)
        for _, gates in self._served():
            if gates.own is not None:
                gates.own.change(self._now(self._quotas.subscription_dispatch) or gates.own.rate)

    def troubles(self) -> list[str]:
        """Return the waits for rates of the topic, its subscriptions and its tenant, in words."""
        own = (gates.own for _, gates in self._served())
        gates = (*self.publish_gates, *self._dispatch_gates, *filter(None, own))
        return [gate.trouble for gate in gates if gate.trouble is not None]

    @property
    def publish_waits(self) -> int:
        """How often a connection had to wait for the rate of publishing to the topic."""
        return 0 if self._own_publish is None else self._own_publish.waits

    def gates(self) -> Iterator[RateGate]:
        """Return the gates of the topic and of its subscriptions, without those of the tenant."""
        yield from filter(None, (self._own_publish, self._own_dispatch))
        yield from filter(None, [gates.own for _, gates in self._served()])

    def _served(self) -> list[tuple[str, SubscriptionGates]]:
        return [] if self._subscriptions is None else list(self._subscriptions.items())

    def _apply_to(self, sub: str, gates: SubscriptionGates) -> None:
        of, shared = f"{self.name} {sub}", self.name.is_scalable
        gates.own = _renewed(
            gates.own,
            self._now(self._quotas.subscription_dispatch),
            lambda rate: RateGate("subscriptionDispatchRate", of, rate, self._share, shared=shared),
        )
        gates.all = (*filter(None, (gates.own,)), *self._dispatch_gates)

    def _now(self, rate: Rate | None) -> Rate | None:
        """Return the rate, with the rate of publishing added if it is relative to it."""
        if rate is None or not rate.relative:
            return rate
        messages, size = (sum(of_log[at] for of_log in self._published.values()) for at in (0, 1))
        return rate._replace(
            messages=None if rate.messages is None else rate.messages + messages * rate.period_s,
            bytes=None if rate.bytes is None else rate.bytes + size * rate.period_s,
        )


UNLIMITED: Final = TopicThrottle(TopicName("persistent", "public", "default", "unlimited"))
"""For producers whose topic is not served by a broker, in tests."""


class TenantGates:
    """The gates that all topics of one tenant share."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.publish: PublishGate | None = None
        self.dispatch: RateGate | None = None

    def apply(self, quotas: TenantQuotas, share: float) -> None:
        of = f"tenant {self.tenant}"
        self.publish = _renewed(
            self.publish,
            quotas.publish,
            lambda rate: PublishGate("publishRate", of, rate, share, shared=True),
        )
        self.dispatch = _renewed(
            self.dispatch,
            quotas.dispatch,
            lambda rate: RateGate("dispatchRate", of, rate, share, shared=True),
        )

    def gates(self) -> Iterator[RateGate]:
        yield from filter(None, (self.publish, self.dispatch))


class Throttles:
    """All gates of this broker."""

    def __init__(self) -> None:
        self.of_topic: Callable[[TopicName], NamespaceQuotas] = lambda name: NO_NAMESPACE_QUOTAS
        self.of_tenant: Callable[[str], TenantQuotas] = lambda tenant: NO_TENANT_QUOTAS
        self.first_share: Callable[[], float] = lambda: 1.0
        """The share of a new gate, until the brokers have divided the rate by their loads."""
        self.credits = CreditTotals()
        self._topics: WeakValueDictionary[TopicName, TopicThrottle] = WeakValueDictionary()
        self._tenants: dict[str, TenantGates] = {}

    def of(self, log: TopicName) -> TopicThrottle:
        """Return the throttle of a log's topic; the caller keeps it alive."""
        name = log.topic if log.is_segment else log
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = TopicThrottle(name)
            self._apply(found)
        return found

    def namespace_changed(self, namespace: str) -> None:
        """Follow new quotas of the namespace."""
        for topic in list(self._topics.values()):
            if topic.name.namespace_name == namespace:
                self._apply(topic)

    def all_changed(self) -> None:
        """Follow the quotas again, because the settings of the broker changed."""
        for topic in list(self._topics.values()):
            self._apply(topic)

    def tenant_changed(self, tenant: str) -> None:
        """Follow the quotas that the tenant has now."""
        found = self._tenants.setdefault(tenant, TenantGates(tenant))
        found.apply(self.of_tenant(tenant), self.first_share())
        if not any(found.gates()):
            del self._tenants[tenant]
        for topic in list(self._topics.values()):
            if topic.name.tenant == tenant:
                self._apply(topic)

    def gates(self) -> Iterator[RateGate]:
        for tenant in self._tenants.values():
            yield from tenant.gates()
        for topic in list(self._topics.values()):
            yield from topic.gates()

    def _apply(self, topic: TopicThrottle) -> None:
        tenant = self._tenants.get(topic.name.tenant) or TenantGates(topic.name.tenant)
        topic.apply(self.of_topic(topic.name), tenant, self.first_share())


def _renewed(gate: G | None, rate: Rate | None, make: Callable[[Rate], G]) -> G | None:
    """Return the gate for a rate that may have changed; None without a rate."""
    if gate is not None:
        if rate is not None and _kinds(rate) == _kinds(gate.rate):
            gate.change(rate)
            return gate
        gate.close()
    return None if rate is None else make(rate)


def _kinds(rate: Rate) -> tuple[bool, bool, float]:
    return rate.messages is None, rate.bytes is None, rate.period_s
