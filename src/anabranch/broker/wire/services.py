"""The parts of a broker that its connections share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from anabranch.aio import TaskRegistry
from anabranch.broker.catalog.authorizer import Authorizer
from anabranch.broker.catalog.classic_topics import ClassicTopics
from anabranch.broker.catalog.policy_book import PolicyBook
from anabranch.broker.catalog.schemas import SchemaRegistry
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.cluster.broker_lease import BrokerLease
from anabranch.broker.cluster.cluster_secret import ClusterSecret
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.owners import TopicOwners
from anabranch.broker.cluster.peers import Targets
from anabranch.broker.cluster.quota_guard import QuotaGuard
from anabranch.broker.engine.port import Engine
from anabranch.broker.wire.publish_room import PublishRoom
from anabranch.broker.wire.revocation import Revocation
from anabranch.clock import Clock
from anabranch.config.broker import BrokerConfig
from anabranch.controller.service import ControllerService
from anabranch.metadata.topics import TopicStore
from anabranch.security.gate import Gate
from anabranch.transport.fair_pump import SharedLimits

REQUESTS_MAX = 1000
TASKS_MAX = 20_000
"""Tasks of a broker above which each connection may have REQUESTS_FEW requests under way."""
REQUESTS_FEW = 10


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a broker that handlers call."""

    config: BrokerConfig
    clock: Clock
    tasks: TaskRegistry
    records: TopicStore
    logs: ServedLogs
    classic: ClassicTopics
    controllers: ControllerService
    schemas: SchemaRegistry
    directory: Directory
    owners: TopicOwners
    engine: Engine
    lease: BrokerLease
    secret: ClusterSecret
    gate: Gate
    limits: SharedLimits
    quotas: QuotaGuard
    room: PublishRoom
    authorizer: Authorizer
    revocation: Revocation
    targets: Targets
    """The ports that other brokers may call at this broker."""
    _name_numbers: Iterator[int] = field(default_factory=count)

    @property
    def policies(self) -> PolicyBook:
        """The policies of all topics."""
        return self.quotas.book.policies

    @property
    def requests_max(self) -> int:
        """How many requests of one connection may be under way; the broker refuses more."""
        return REQUESTS_MAX if len(self.tasks) < TASKS_MAX else REQUESTS_FEW

    def make_producer_name(self) -> str:
        """Return a name that no producer of this cluster has had before."""
        return f"{self.config.cluster}-{self.lease.me.generation}-{next(self._name_numbers)}"
