"""A Pulsar cluster in memory, as its admin API shows it: the reference for the port, for tests.

It has the traps of a real cluster: a create after a delete makes a new, open topic, a terminated topic takes
new subscriptions, and a topic without clients is deleted although it has a backlog. An entry is
stored as its time alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from anabranch.control.cluster_admin import (
    PulsarClient,
    PulsarInternals,
    PulsarOwner,
    PulsarStats,
    PulsarSubscription,
)
from anabranch.errors import ServiceNotReadyError, TopicNotFoundError
from anabranch.model.names import TopicName

URL = "pulsar://pulsar:6650"


async def _at_once() -> None:
    """Let a call take effect at once."""


@dataclass(slots=True)
class SimTopic:
    """One topic: the times of its entries, and for each subscription how many of them are acknowledged."""

    properties: dict[str, str] = field(default_factory=dict)
    times_ms: list[int] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    """For each subscription how many entries were sent to consumers, whether or not acknowledged."""
    terminated: bool = False
    pending_appends: int = 0
    """Appends that were under way when the topic was terminated, and never complete."""
    clients: int = 0
    consumers: dict[str, int] = field(default_factory=dict)
    """Attached consumers of each subscription."""
    retention_minutes: int = 0
    deduplicates: bool = False
    unloads: int = 0


class SimPulsar:
    """The topics of a cluster; `before` is awaited before each call takes effect."""

    def __init__(self, before: Callable[[], Awaitable[None]] = _at_once) -> None:
        self.found: dict[TopicName, SimTopic] = {}
        self.deleted: list[TopicName] = []
        self.before = before
        self.interrupted_creations = 0
        """How many of the next subscriptions from the earliest message are left at the end of the topic."""

    async def create(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        await self.before()
        self.found.setdefault(topic, SimTopic(dict(properties)))

    async def retain(self, topic: TopicName, minutes: int) -> None:
        (await self._topic(topic)).retention_minutes = minutes

    async def recognise_repetitions(self, topic: TopicName) -> None:
        (await self._topic(topic)).deduplicates = True

    async def terminate(self, topic: TopicName) -> None:
        (await self._topic(topic)).terminated = True

    async def unload(self, topic: TopicName) -> None:
        found = await self._topic(topic)
        found.unloads += 1
        found.pending_appends = found.clients = 0

    async def delete(self, topic: TopicName) -> None:
        await self.before()
        found = self.found.get(topic)
        if found is None:
            return
        if found.clients:
            raise ServiceNotReadyError(f"{topic} still has clients")
        del self.found[topic]
        self.deleted.append(topic)

    async def properties(self, topic: TopicName) -> dict[str, str]:
        return dict((await self._topic(topic)).properties)

    async def set_properties(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        (await self._topic(topic)).properties.update(properties)

    async def stats(self, topic: TopicName, *, precise: bool = False) -> PulsarStats:
        found = await self._topic(topic)
        end = len(found.times_ms)
        sent = {} if precise else found.sent
        cursors = {
            name: PulsarSubscription(
                end - max(at, sent.get(name, 0)), consumers=[PulsarClient()] * found.consumers.get(name, 0)
            )
            for name, at in found.cursors.items()
        }
        clients = [PulsarClient()] * found.clients
        return PulsarStats(storage_size=end, publishers=clients, subscriptions=cursors)

    async def internals(self, topic: TopicName) -> PulsarInternals:
        found = await self._topic(topic)
        state = "Terminated" if found.terminated else "LedgerOpened"
        return PulsarInternals(
            state, found.pending_appends, dict.fromkeys(found.cursors), len(found.times_ms)
        )

    async def create_subscription(self, topic: TopicName, name: str, *, earliest: bool) -> bool:
        found = await self._topic(topic)
        if name in found.cursors:
            return False
        found.cursors[name] = len(found.times_ms)
        if earliest and self.interrupted_creations:
            self.interrupted_creations -= 1
            raise ServiceNotReadyError(f"{topic} has no subscription {name} yet")
        if earliest:
            found.cursors[name] = 0
        return True

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        await self.before()
        if topic in self.found:
            self.found[topic].cursors.pop(name, None)

    async def seek_to_time(self, topic: TopicName, name: str, timestamp_ms: int) -> None:
        found = await self._subscribed(topic, name)
        found.cursors[name] = sum(1 for time_ms in found.times_ms if time_ms < timestamp_ms)

    async def seek_to_entry(self, topic: TopicName, name: str, ledger: int, entry: int) -> None:
        found = await self._subscribed(topic, name)
        found.cursors[name] = min(max(entry, 0), len(found.times_ms))

    async def skip_all(self, topic: TopicName, name: str) -> None:
        found = await self._subscribed(topic, name)
        found.cursors[name] = len(found.times_ms)

    async def owner(self, topic: TopicName) -> PulsarOwner:
        await self.before()
        return PulsarOwner(URL)

    async def partitions(self, topic: TopicName) -> int:
        await self._topic(topic)
        return 0

    async def topics(self, namespace: str) -> list[str]:
        await self.before()
        return sorted(str(topic) for topic in self.found if topic.namespace_name == namespace)

    async def _topic(self, topic: TopicName) -> SimTopic:
        await self.before()
        found = self.found.get(topic)
        if found is None:
            raise TopicNotFoundError(f"Pulsar has no topic {topic}")
        return found

    async def _subscribed(self, topic: TopicName, name: str) -> SimTopic:
        found = await self._topic(topic)
        if name not in found.cursors:
            raise TopicNotFoundError(f"Pulsar has no topic {topic}, or it lacks the subscription")
        return found
