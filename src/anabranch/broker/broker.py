"""One broker: storage, topics, controllers and connections of one process, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from anabranch.aio import TaskRegistry
from anabranch.broker.catalog.authorizer import Authorizer
from anabranch.broker.catalog.classic_topics import ClassicTopics
from anabranch.broker.catalog.idle_logs import IdleLogs
from anabranch.broker.catalog.message_size import largest_message_bytes
from anabranch.broker.catalog.policy_rounds import PolicyRounds, follow_policies
from anabranch.broker.catalog.quotas import QuotaBook
from anabranch.broker.catalog.schemas import SchemaRegistry
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.catalog.stores import Stores
from anabranch.broker.catalog.trimming import Trimming
from anabranch.broker.catalog.unused_live_topics import UnusedLiveTopics
from anabranch.broker.cluster.broker_lease import BrokerLease
from anabranch.broker.cluster.cluster_secret import ClusterSecret
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.drain_events import DrainEvents, DrainMessenger
from anabranch.broker.cluster.endpoint import Endpoint
from anabranch.broker.cluster.owners import TopicOwners
from anabranch.broker.cluster.ownership import Ownership, OwnershipOptions
from anabranch.broker.cluster.peers import Peers, Target
from anabranch.broker.cluster.quota_guard import QuotaGuard
from anabranch.broker.cluster.remote_calls import Port
from anabranch.broker.cluster.routing import (
    LEADER,
    LEADER_TARGET,
    BrokerLeaders,
    BrokerRouter,
    PlaceRouter,
)
from anabranch.broker.cluster.unled_topics import UnledTopics
from anabranch.broker.engine.embedded import EngineParts
from anabranch.broker.engine.local_segments import LocalSegments
from anabranch.broker.environment import BrokerEnvironment
from anabranch.broker.serving.context import LogContext, Spawn, SubscriptionLimits
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.expiry import Expiry
from anabranch.broker.wire.handlers import handlers_for
from anabranch.broker.wire.handshake import Handshake
from anabranch.broker.wire.liveness import ListeningMachine
from anabranch.broker.wire.publish_room import PublishRoom
from anabranch.broker.wire.revocation import Revocation
from anabranch.broker.wire.services import Services
from anabranch.config.broker import BrokerConfig
from anabranch.controller.service import ControllerService
from anabranch.controller.topic.controller import TopicController
from anabranch.controller.topic.leadership import ControllerContext, ControllerSettings
from anabranch.errors import AnabranchError, PersistenceError
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName
from anabranch.transport.door import Listener
from anabranch.transport.fair_pump import FairPump, SharedLimits
from anabranch.transport.pump import Pump

_logger = logging.getLogger(__name__)

P = TypeVar("P")

LEAVE_S = 5.0
"""How long a stop waits for the disk, or for the topics of a store to be left."""


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
        self.config, self.id = config, id
        self.failed = asyncio.Event()
        """Set when a store cannot be trusted any more: the process has to end, and another has to start."""
        self.connections: dict[ServerConnection, None] = {}
        self.limits = SharedLimits(config, self._make_pump)
        self.directory = Directory(environment.store)
        self.records = TopicStore(environment.store)
        self.authorizer = Authorizer(self.records.namespaces, config)
        self._message_bytes_max = config.max_message_bytes
        self.schemas = SchemaRegistry(self.records.schemas, config.schema_policy())
        self.stores = Stores(environment.storage_of, self._store_failed)
        self.clock, self.timings, self.gate = environment.clock, environment.timings, environment.gate
        self._endpoint, self.url, self.http_url = endpoint, endpoint.url, endpoint.http_url
        self._servers: Sequence[Listener] = ()
        self._tasks = TaskRegistry()
        self._unwatch: Callable[[], None] = lambda: None
        drains, context = DrainEvents(), self._log_context(environment)
        self.logs = ServedLogs(self.stores, context, drains.report)
        self.segments = LocalSegments(self.logs, drains)
        self.secret = ClusterSecret(environment.secrets, environment.clock)
        self._peers = Peers(self.secret, endpoint.peer_tls)
        self._targets = {LEADER_TARGET: Target(LEADER, self._local_leader)}
        self.quotas = self._make_quotas(context)
        served, book = self.directory.served, self.quotas.book
        self.classic = ClassicTopics(self.logs, self.records, self.clock, served, book)
        self.record = endpoint.record(id)
        lease = BrokerLease(self.directory, environment.store, self.record)
        self.owners = TopicOwners(self.records, self.classic, self.directory)
        self.engine = environment.engine(
            EngineParts(self.records, self.logs, self.segments, self.classic, self.owners, lease, self.serve)
        )
        self.controllers = self._make_controllers(environment)
        drains.otherwise = DrainMessenger(self._tasks, self.controllers.controller).send
        self._ownership = self._make_ownership(lease, environment)
        self._services = self._make_services(lease, environment)
        self._handlers = handlers_for(self.engine.traits)

    def _make_quotas(self, context: LogContext) -> QuotaGuard:
        book = QuotaBook(self.config, self.records, context.throttles, self.clock.wall_ms)
        guard = QuotaGuard(book, context.usage, self.records, self.stores)
        return guard.joined(self.id, self.directory, self.serve_each)

    def _make_controllers(self, environment: BrokerEnvironment) -> ControllerService:
        return ControllerService(
            ControllerContext(
                topics=self.records,
                segments=self.engine.segments,
                clock=environment.clock,
                rng=environment.rng,
                settings=ControllerSettings.from_config(self.config),
                failpoints=environment.failpoints,
                stores=self.directory.served,
                is_sound=self.engine.is_sound,
                admit_subscription=self.quotas.admit_subscription,
                check_right=self.engine.check_right,
            ),
            BrokerLeaders(self.id, self.directory, self._peers, self.stores.is_open),
        )

    def _make_ownership(self, lease: BrokerLease, environment: BrokerEnvironment) -> Ownership:
        fixed = self.engine.traits.fixed_workers
        options = OwnershipOptions(
            opened=self.controllers.store_opened,
            closing=self._leave_store,
            workers=self.config.workers,
            patience_s=self.config.lease_s if fixed else 0.0,
            unexpected=not fixed,
        )
        return Ownership(lease, self.directory, environment.store, self.stores, options)

    def _make_services(self, lease: BrokerLease, environment: BrokerEnvironment) -> Services:
        return Services(
            config=self.config,
            clock=environment.clock,
            tasks=self._tasks,
            records=self.records,
            logs=self.logs,
            classic=self.classic,
            controllers=self.controllers,
            schemas=self.schemas,
            directory=self.directory,
            owners=self.owners,
            engine=self.engine,
            lease=lease,
            secret=self.secret,
            gate=self.gate,
            limits=self.limits,
            quotas=self.quotas,
            room=PublishRoom(self.config, self.connections),
            authorizer=self.authorizer,
            revocation=Revocation(self.authorizer, self.connections, self._tasks, self.gate.audit),
            targets=self._targets,
        )

    async def start(self) -> None:
        """Join the living brokers, recover the own stores, finish interrupted changes, then listen."""
        await self.records.namespaces.ensure_defaults(self.config.cluster)
        await self.secret.load(self.records.store)
        self.authorizer.start()
        await self.quotas.book.start()
        await self.schemas.start()
        most = self.config.max_message_bytes
        self._message_bytes_max = await largest_message_bytes(self.records.store, most)
        await self.directory.start()
        self._unwatch = self.directory.watch(self._brokers_changed)
        await self._ownership.start()
        self._servers = await self._endpoint.listen(self.limits.door)
        self._tasks.spawn(IdleLogs(self.logs, self.config, self.controllers.look_soon).run())
        self._tasks.spawn(self.quotas.run())
        if not self.gate.is_open:
            answer_s = self.config.authentication_refresh_check_s
            self._tasks.spawn(Expiry(self.connections, self.clock, self.gate.audit, answer_s).run())
        self._tasks.spawn(UnledTopics(self.logs, self.controllers).run())
        policies, check_s = self.quotas.book.policies, self.config.policy_check_s
        self._tasks.spawn(Trimming(self.stores, self.logs, self.clock, policies).run())
        policies.changed = partial(follow_policies, self.logs, policies)
        self.policy_rounds = PolicyRounds(self.logs, policies, self.clock.wall_ms, self.spawn, check_s)
        self._tasks.spawn(self.policy_rounds.run())
        self._tasks.spawn(UnusedLiveTopics(self.classic, self.logs, self.records).run())

    async def stop(self) -> None:
        """Answer accepted entries, hang up, close all stores. May be called at any stage of `start`."""
        for server in self._servers:
            server.close()
        await self._answer_all()
        for connection in list(self.connections):
            connection.hang_up()
        await self.controllers.stop()
        await self._tasks.stop()
        for connection in list(self.connections):
            connection.lost()
        await self._peers.close()
        await self._ownership.stop()
        self.authorizer.stop()
        self._unwatch()
        self.quotas.book.stop()
        self.schemas.stop()
        await self.directory.stop()

    def _store_failed(self, store: int, error: PersistenceError) -> None:
        _logger.critical("store %d failed and cannot be used any more: %s", store, error)
        self.failed.set()

    def serve(self, target: str, port: Port[P], local: P, **members: Any) -> P:
        """Let other brokers call `local`; returns the port whose calls reach the owner of their place."""
        self.serve_each(target, port, local)
        router = PlaceRouter(target, local, self.stores.is_open, self.directory, self._peers)
        return port.proxy(router, **members)

    def serve_each(self, target: str, port: Port[P], local: P) -> Callable[[BrokerRecord], P]:
        """Let other brokers call `local`; returns a function that gives the port at another broker."""
        self._targets[target] = Target.of(port, local)
        return lambda broker: port.proxy(BrokerRouter(self._peers, self._peers.url_of(broker), target))

    @property
    def spawn(self) -> Spawn:
        """Starts a task that ends with the broker."""
        return self._tasks.spawn

    async def owner_of(self, name: TopicName) -> BrokerRecord | None:
        """The broker that serves or leads a topic; None when any broker will do."""
        return await self.owners.owner_of(name)

    async def _local_leader(self, name: str) -> TopicController:
        return await self.controllers.lead(TopicName.parse(name))

    def _brokers_changed(self) -> None:
        self._peers.keep([self._peers.url_of(broker) for broker in self.directory.brokers.values()])

    async def _leave_store(self, store: int) -> None:
        """Stop leading the topics of a store and disconnect the clients of its logs."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.controllers.store_closing(store)
        except (AnabranchError, TimeoutError) as error:
            _logger.warning("the topics of store %d were not left in order: %s", store, error)
        finally:
            self.logs.leave(store)

    async def _answer_all(self) -> None:
        """Accept no more entries and answer the accepted ones, so that no producer has to resend one."""
        for connection in self.connections:
            connection.stop_reading()
        await self.logs.flush(LEAVE_S)

    def _make_pump(self) -> Pump:
        loop = asyncio.get_running_loop()
        traits = self.engine.traits
        machine = ListeningMachine(
            now=loop.time(),
            keep_alive_s=self.config.keep_alive_s,
            handshake_s=self.config.handshake_timeout_s,
            max_message_bytes=self._message_bytes_max,
            features=traits.features,
        )
        machine.version = traits.server_version
        connection = ServerConnection(self._services, self._handlers, self.connections)
        return FairPump(machine, Handshake(connection), self.limits)

    def _log_context(self, environment: BrokerEnvironment) -> LogContext:
        epochs = self.records.producer_epochs
        return LogContext(
            clock=environment.clock,
            spawn=self._tasks.spawn,
            later=self.limits.turns.later,
            limits=SubscriptionLimits.from_config(self.config, ordered_delays=environment.ordered_delays),
            rate_window_s=self.config.load_report_interval_s,
            epoch_of=epochs.current,
            next_epoch=epochs.next,
            dispatch_times=environment.timings.dispatch,
            failpoints=environment.failpoints,
        )
