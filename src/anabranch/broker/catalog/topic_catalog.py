"""Everything that a broker knows about topics, as one part: records, policies, schemas, rights and logs.

This module must not know connections, other brokers or what leading a topic means.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from anabranch.broker.catalog.authorizer import Authorizer
from anabranch.broker.catalog.classic_topics import ClassicTopics
from anabranch.broker.catalog.idle_logs import IdleLogs
from anabranch.broker.catalog.policy_book import PolicyBook
from anabranch.broker.catalog.policy_rounds import PolicyRounds, follow_policies
from anabranch.broker.catalog.quotas import QuotaBook
from anabranch.broker.catalog.schemas import SchemaRegistry
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.catalog.stores import Stores
from anabranch.broker.catalog.trimming import Trimming
from anabranch.broker.catalog.unused_live_topics import UnusedLiveTopics
from anabranch.clock import Clock
from anabranch.config.broker import BrokerConfig
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName


@dataclass(frozen=True, slots=True)
class TopicCatalog:
    """The topics of the cluster, and the logs in the stores of this broker."""

    config: BrokerConfig
    clock: Clock
    records: TopicStore
    stores: Stores
    logs: ServedLogs
    classic: ClassicTopics
    schemas: SchemaRegistry
    authorizer: Authorizer
    book: QuotaBook
    policy_rounds: PolicyRounds

    @property
    def policies(self) -> PolicyBook:
        """The policies of all topics."""
        return self.book.policies

    async def start(self) -> None:
        """Follow the records of namespaces: grants, quotas, policies and schemas."""
        self.authorizer.start()
        await self.book.start()
        await self.schemas.start()

    def stop(self) -> None:
        self.authorizer.stop()
        self.book.stop()
        self.schemas.stop()

    async def unload_idle(self, unloaded: Callable[[TopicName], None]) -> None:
        """Unload logs that were not used for long, and call `unloaded` with each, while the broker runs."""
        await IdleLogs(self.logs, self.config, unloaded).run()

    def upkeep(self) -> Iterator[Coroutine[Any, Any, None]]:
        """The work that looks after logs for as long as the broker runs; the stores are open by now."""
        self.policies.changed = partial(follow_policies, self.logs, self.policies)
        yield Trimming(self.stores, self.logs, self.clock, self.policies).run()
        yield self.policy_rounds.run()
        yield UnusedLiveTopics(self.classic, self.logs, self.records).run()
