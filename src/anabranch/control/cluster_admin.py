"""The port of a Pulsar cluster's admin API: the calls that the control plane needs, and their outcomes.

Admin calls have no conditions. Each may be repeated, and an outcome that was reached before counts as done.
A call that was sent may take effect late, also after its caller gave up. This module must not know segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from anabranch.model.names import TopicName


class PulsarClient(msgspec.Struct, rename="camel"):
    """A producer or consumer in the stats of a topic."""

    producer_name: str = ""
    consumer_name: str = ""
    metadata: dict[str, str] = {}


class PulsarSubscription(msgspec.Struct, rename="camel"):
    """One subscription in the stats of a topic."""

    msg_backlog: int = 0
    """Entries, not messages."""
    type: str = ""
    """Empty before the first consumer."""
    is_durable: bool = msgspec.field(default=True, name="isDurable")
    consumers: list[PulsarClient] = []


class PulsarStats(msgspec.Struct, rename="camel"):
    """The stats of a topic, as far as they are used."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    storage_size: int = 0
    publishers: list[PulsarClient] = []
    subscriptions: dict[str, PulsarSubscription] = {}


class PulsarInternals(msgspec.Struct, rename="camel"):
    """The internal stats of a topic, as far as they are used."""

    state: str = ""
    pending_add_entries_count: int = 0
    cursors: dict[str, Any] = {}
    number_of_entries: int = 0

    @property
    def is_terminated(self) -> bool:
        return self.state == "Terminated"


class PulsarOwner(NamedTuple):
    """The addresses of the broker that serves a topic."""

    url: str
    url_tls: str = ""


class ClusterAdmin(Protocol):
    """The topics of one cluster. Each call about an absent topic raises TopicNotFoundError."""

    async def create(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        """Create a topic. A topic that exists stays as it is, even if it is terminated."""

    async def retain(self, topic: TopicName, minutes: int) -> None:
        """Keep acknowledged messages for this long; -1 keeps them forever."""

    async def recognise_repetitions(self, topic: TopicName) -> None:
        """Switch deduplication on: an entry that a producer sends again after a reconnect is stored once."""

    async def terminate(self, topic: TopicName) -> None:
        """Let the topic take no more messages. This cannot be undone."""

    async def unload(self, topic: TopicName) -> None:
        """Disconnect all clients and load the topic again on its next use."""

    async def delete(self, topic: TopicName) -> None:
        """Delete a topic; a missing one is ignored. Raises ServiceNotReadyError if the topic has clients."""

    async def properties(self, topic: TopicName) -> dict[str, str]: ...

    async def set_properties(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        """Set these properties of a topic; others stay."""

    async def stats(self, topic: TopicName, *, precise: bool = False) -> PulsarStats:
        """`precise` counts backlogs by what is acknowledged, and not by what was sent to consumers."""

    async def internals(self, topic: TopicName) -> PulsarInternals: ...

    async def create_subscription(self, topic: TopicName, name: str, *, earliest: bool) -> bool:
        """Create a subscription. Returns False if it exists; it then stays where it is.

        A creation at earliest that fails may have created the subscription and left it at the end.
        """

    async def delete_subscription(self, topic: TopicName, name: str) -> None:
        """Delete a subscription with its consumers. A missing subscription or topic is ignored."""

    async def seek_to_time(self, topic: TopicName, name: str, timestamp_ms: int) -> None: ...

    async def seek_to_entry(self, topic: TopicName, name: str, ledger: int, entry: int) -> None: ...

    async def skip_all(self, topic: TopicName, name: str) -> None: ...

    async def owner(self, topic: TopicName) -> PulsarOwner:
        """The broker that serves the topic now, or will."""

    async def partitions(self, topic: TopicName) -> int:
        """The number of partitions of a topic; 0 without any."""

    async def topics(self, namespace: str) -> list[str]:
        """The topics of a namespace."""
