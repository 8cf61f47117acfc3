"""One broker: its parts are put together here, and started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from anabranch.aio import TaskRegistry
from anabranch.broker.catalog.authorizer import Authorizer
from anabranch.broker.catalog.classic_topics import ClassicTopics
from anabranch.broker.catalog.policy_rounds import PolicyRounds
from anabranch.broker.catalog.quotas import QuotaBook
from anabranch.broker.catalog.schemas import SchemaRegistry
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.catalog.stores import Stores
from anabranch.broker.catalog.topic_catalog import TopicCatalog
from anabranch.broker.cluster.cluster_secret import ClusterSecret
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.drain_events import DrainEvents, DrainMessenger
from anabranch.broker.cluster.endpoint import Endpoint
from anabranch.broker.cluster.leading import LedStores
from anabranch.broker.cluster.links import ClusterLinks
from anabranch.broker.cluster.owners import TopicOwners
from anabranch.broker.cluster.quota_guard import QuotaGuard
from anabranch.broker.cluster.routing import BrokerLeaders
from anabranch.broker.engine.embedded import EngineParts
from anabranch.broker.engine.local_segments import LocalSegments
from anabranch.broker.environment import BrokerEnvironment
from anabranch.broker.serving.context import LogContext, SubscriptionLimits
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.publish_room import PublishRoom
from anabranch.broker.wire.reception import Reception
from anabranch.broker.wire.revocation import Revocation
from anabranch.broker.wire.services import Services
from anabranch.clock import Clock
from anabranch.config.broker import BrokerConfig
from anabranch.controller.service import ControllerService
from anabranch.controller.topic.leadership import ControllerContext, ControllerSettings
from anabranch.errors import PersistenceError
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.topics import TopicStore
from anabranch.security.gate import Gate
from anabranch.transport.fair_pump import SharedLimits
from anabranch.transport.pump import Pump

_logger = logging.getLogger(__name__)


class Broker:
    """Serves topics; owns its stores while it runs, but not the metadata store."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: BrokerEnvironment,
        endpoint: Endpoint,
        id: int = 0,  # noqa: A002
    ) -> None:
        """`id` is its number among all brokers."""
        self.config, self.environment, self.endpoint, self.id = config, environment, endpoint, id
        self.failed = asyncio.Event()
        """Set when a store cannot be trusted any more: the process has to end, and another has to start."""
        self.limits = SharedLimits(config, self._make_pump)
        self._tasks = TaskRegistry()
        self.spawn = self._tasks.spawn
        """Starts a task that ends with the broker."""
        records, drains = TopicStore(environment.store), DrainEvents()
        context = self._log_context(records)
        stores = Stores(environment.storage_of, self._store_failed)
        secret = ClusterSecret(environment.secrets, environment.clock)
        self.links = ClusterLinks(environment.store, secret, endpoint, id, stores.is_open)
        logs = ServedLogs(stores, context, drains.report)
        self.catalog = self._make_catalog(records, logs, context)
        guard = QuotaGuard(self.catalog.book, context.usage, records, stores)
        self.quotas = guard.joined(id, self.links.directory, self.links.serve_each)
        self.segments = LocalSegments(logs, drains)
        """The segments in the stores of this broker."""
        self.owners = TopicOwners(records, self.catalog.classic, self.links.directory)
        self.engine = environment.engine(self._engine_parts())
        fixed = self.engine.traits.fixed_workers
        self.leading = LedStores(self._make_controllers(), self.catalog, self.links, fixed_workers=fixed)
        drains.otherwise = DrainMessenger(self._tasks, self.leading.controllers.controller).send
        connections: dict[ServerConnection, None] = {}
        self.reception = Reception(self._make_services(connections), connections, endpoint)

    def _log_context(self, records: TopicStore) -> LogContext:
        world, epochs = self.environment, records.producer_epochs
        return LogContext(
            clock=world.clock,
            spawn=self._tasks.spawn,
            later=self.limits.turns.later,
            limits=SubscriptionLimits.from_config(self.config, ordered_delays=world.ordered_delays),
            rate_window_s=self.config.load_report_interval_s,
            epoch_of=epochs.current,
            next_epoch=epochs.next,
            dispatch_times=world.timings.dispatch,
            failpoints=world.failpoints,
        )

    def _make_catalog(self, records: TopicStore, logs: ServedLogs, context: LogContext) -> TopicCatalog:
        config, clock = self.config, self.environment.clock
        book = QuotaBook(config, records, context.throttles, clock.wall_ms)
        return TopicCatalog(
            config=config,
            clock=clock,
            records=records,
            stores=logs.stores,
            logs=logs,
            classic=ClassicTopics(logs, records, clock, self.links.directory.served, book),
            schemas=SchemaRegistry(records.schemas, config.schema_policy()),
            authorizer=Authorizer(records.namespaces, config),
            book=book,
            policy_rounds=PolicyRounds(
                logs, book.policies, clock.wall_ms, self._tasks.spawn, config.policy_check_s
            ),
        )

    def _engine_parts(self) -> EngineParts:
        return EngineParts(
            records=self.catalog.records,
            logs=self.catalog.logs,
            segments=self.segments,
            classic=self.catalog.classic,
            owners=self.owners,
            lease=self.links.lease,
            serve=self.links.serve,
        )

    def _make_controllers(self) -> ControllerService:
        context = ControllerContext(
            topics=self.catalog.records,
            segments=self.engine.segments,
            clock=self.environment.clock,
            rng=self.environment.rng,
            settings=ControllerSettings.from_config(self.config),
            failpoints=self.environment.failpoints,
            stores=self.links.directory.served,
            is_sound=self.engine.is_sound,
            admit_subscription=self.quotas.admit_subscription,
            check_right=self.engine.check_right,
        )
        links = self.links
        return ControllerService(context, BrokerLeaders(self.id, links.directory, links.peers, links.owns))

    def _make_services(self, connections: dict[ServerConnection, None]) -> Services:
        catalog, gate = self.catalog, self.environment.gate
        return Services(
            config=self.config,
            clock=self.environment.clock,
            tasks=self._tasks,
            records=catalog.records,
            logs=catalog.logs,
            classic=catalog.classic,
            controllers=self.leading.controllers,
            schemas=catalog.schemas,
            directory=self.links.directory,
            owners=self.owners,
            engine=self.engine,
            lease=self.links.lease,
            secret=self.links.secret,
            gate=gate,
            limits=self.limits,
            quotas=self.quotas,
            room=PublishRoom(self.config, connections),
            authorizer=catalog.authorizer,
            revocation=Revocation(catalog.authorizer, connections, self._tasks, gate.audit),
            targets=self.links.targets,
        )

    async def start(self) -> None:
        """Join the living brokers, recover the own stores, finish interrupted changes, then listen."""
        await self.catalog.records.namespaces.ensure_defaults(self.config.cluster)
        await self.links.secret.load(self.environment.store)
        await self.catalog.start()
        await self.reception.prepare()
        await self.links.start()
        await self.leading.start()
        await self.reception.listen()
        for work in (
            self.catalog.unload_idle(self.leading.controllers.look_soon),
            self.quotas.run(),
            *self.reception.upkeep(),
            self.leading.find_leaders(),
            *self.catalog.upkeep(),
        ):
            self._tasks.spawn(work)

    async def stop(self) -> None:
        """Answer accepted entries, hang up, close all stores. May be called at any stage of `start`."""
        await self.reception.close()
        await self.leading.controllers.stop()
        await self._tasks.stop()
        self.reception.drop()
        # Calls end before the stores are given up: the next owner must not wait for an answer from here.
        await self.links.peers.close()
        await self.leading.stop()
        self.catalog.stop()
        await self.links.stop()

    def _store_failed(self, store: int, error: PersistenceError) -> None:
        _logger.critical("store %d failed and cannot be used any more: %s", store, error)
        self.failed.set()

    def _make_pump(self) -> Pump:
        return self.reception.make_pump()

    # Shorthands for what admin calls, reports and tests ask for most.

    @property
    def clock(self) -> Clock:
        return self.environment.clock

    @property
    def gate(self) -> Gate:
        return self.environment.gate

    @property
    def url(self) -> str:
        return self.endpoint.url

    @property
    def http_url(self) -> str:
        return self.endpoint.http_url

    @property
    def records(self) -> TopicStore:
        return self.catalog.records

    @property
    def stores(self) -> Stores:
        return self.catalog.stores

    @property
    def logs(self) -> ServedLogs:
        return self.catalog.logs

    @property
    def classic(self) -> ClassicTopics:
        return self.catalog.classic

    @property
    def schemas(self) -> SchemaRegistry:
        return self.catalog.schemas

    @property
    def authorizer(self) -> Authorizer:
        return self.catalog.authorizer

    @property
    def directory(self) -> Directory:
        return self.links.directory

    @property
    def record(self) -> BrokerRecord:
        return self.links.record

    @property
    def controllers(self) -> ControllerService:
        return self.leading.controllers

    @property
    def connections(self) -> Mapping[ServerConnection, None]:
        return self.reception.connections
