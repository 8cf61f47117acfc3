"""One broker: storage, controllers, topics and connections of one process, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from anabranch.aio import TaskRegistry
from anabranch.broker.catalog.producer_epochs import TopicEpochs
from anabranch.broker.catalog.schemas import SchemaRegistry
from anabranch.broker.catalog.stores import StorageOf, Stores
from anabranch.broker.catalog.topics import Topics
from anabranch.broker.catalog.trimming import Trimming
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.leaders import CONTROLLER, BrokerLeaders
from anabranch.broker.cluster.leaders import TARGET as CONTROLLER_TARGET
from anabranch.broker.cluster.local_segments import LocalSegments
from anabranch.broker.cluster.ownership import Ownership, OwnershipOptions
from anabranch.broker.cluster.peers import Peers, Target
from anabranch.broker.cluster.remote_calls import Port
from anabranch.broker.cluster.routed_segments import SEGMENTS, DrainMessenger, PlaceRouter, route_segments
from anabranch.broker.cluster.routed_segments import TARGET as SEGMENTS_TARGET
from anabranch.broker.serving.log_producers import ProducerContext
from anabranch.broker.serving.rates import RateMeter
from anabranch.broker.serving.served_log import LogContext
from anabranch.broker.serving.subscription import SubscriptionLimits
from anabranch.broker.wire.connection import ListeningMachine, ServerConnection
from anabranch.broker.wire.handlers.lookup import owner_of
from anabranch.broker.wire.handlers.table import HANDLERS
from anabranch.broker.wire.services import Services
from anabranch.clock import Clock
from anabranch.config import BrokerConfig
from anabranch.controller.service import ControllerService
from anabranch.controller.topic.controller import TopicController
from anabranch.controller.topic.leadership import ControllerContext, ControllerSettings
from anabranch.errors import AnabranchError, PersistenceError, VersionConflictError
from anabranch.failpoints import Failpoints
from anabranch.metadata.records import BrokerRecord, Retention
from anabranch.metadata.store import ABSENT, MetadataStore
from anabranch.metadata.topics import TopicStore
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.pump import Pump, listen

_logger = logging.getLogger(__name__)

GENERATIONS = "/sequences/broker-start"
SECRET = "/secrets/brokers"
SECRET_BYTES = 32

FAREWELL_S = 5.0
"""How long a stop waits for the disk before it hangs up."""

SAMPLED_AT_ONCE = 200
"""Logs whose rates are sampled in one turn of the loop; thousands in one would be felt."""

FEATURES = pb.FeatureFlags(
    supports_scalable_topics=True, supports_get_partitioned_metadata_without_auto_creation=True
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a broker is reached, when that is arranged outside of it."""

    url: str
    http_url: str
    listen: Callable[[Callable[[], Pump]], Awaitable[Sequence[asyncio.AbstractServer]]]
    """Accept connections from now on, one pump from the given factory each."""


class Broker:
    """Serves topics; owns its stores while it runs, but not the metadata store."""

    def __init__(
        self,
        config: BrokerConfig,
        storage_of: StorageOf,
        store: MetadataStore,
        clock: Clock,
        rng: random.Random,
        failpoints: Failpoints,
        *,
        id: int = 0,  # noqa: A002
        endpoint: Endpoint | None = None,
    ) -> None:
        """`id` is its number among all brokers. Without `endpoint` it listens as configured."""
        self.config = config
        self.id = id
        self.directory = Directory(store)
        self.records = TopicStore(store)
        self.connections: dict[ServerConnection, None] = {}
        self._store = store
        self.stores = Stores(storage_of, self._store_failed)
        self.failed = asyncio.Event()
        """Set when a store cannot be trusted any more: the process has to end, and another to start."""
        self._clock = clock
        self._rng = rng
        self._failpoints = failpoints
        self._tasks = TaskRegistry()
        epochs = TopicEpochs(store)
        self.topics = Topics(
            self.stores,
            self.records,
            LogContext(
                clock=clock,
                spawn=self._tasks.spawn,
                limits=SubscriptionLimits(
                    batch_entries=config.dispatch_max_entries,
                    batch_bytes=config.dispatch_max_bytes,
                    unacked_max=config.max_unacked_per_subscription or 2**62,
                ),
                rate_window_s=config.load_report_interval_s,
                producers=ProducerContext(
                    spawn=self._tasks.spawn,
                    deduplicate=config.deduplication,
                    epoch_of=epochs.current,
                    next_epoch=epochs.next,
                ),
            ),
            auto_create=config.auto_create_topics,
            served=lambda: self.directory.served,
        )
        self.segments = LocalSegments(self.topics)
        self._peers = Peers()
        self._targets = {
            SEGMENTS_TARGET: Target(SEGMENTS, self._local_segments),
            CONTROLLER_TARGET: Target(CONTROLLER, self._local_leader),
        }
        self.controllers = ControllerService(
            ControllerContext(
                topics=self.records,
                segments=route_segments(self.segments, self._owns, self.directory, self._peers),
                clock=clock,
                rng=rng,
                settings=ControllerSettings.from_config(config),
                failpoints=failpoints,
                stores=lambda: self.directory.served,
            ),
            BrokerLeaders(self.directory, self._peers, self._owns),
        )
        self.segments.unheard = DrainMessenger(self._tasks, self.controllers.controller).take
        self._ownership: Ownership | None = None
        self.schemas = SchemaRegistry(store)
        self._services = Services(
            config,
            clock,
            self._tasks,
            self.records,
            self.topics,
            self.controllers,
            self.schemas,
            self.directory,
            self._peers,
            self._targets,
        )
        self._endpoint = endpoint
        self._unwatch: Callable[[], None] = lambda: None
        self._servers: Sequence[asyncio.AbstractServer] = ()
        self._port = config.port

    @property
    def port(self) -> int:
        """The port it listens on, also when the configuration left the choice to the system."""
        assert self._port, "the broker is not started"
        return self._port

    @property
    def url(self) -> str:
        """Where clients reach this broker, and no other."""
        if self._endpoint is not None:
            return self._endpoint.url
        host = self.config.advertised_host or self.config.host
        return f"pulsar://[{host}]:{self.port}" if ":" in host else f"pulsar://{host}:{self.port}"

    async def start(self) -> None:
        """Join the brokers that live, recover what is stored here, finish what was begun, then listen."""
        await self.records.ensure_defaults(self.config.cluster)
        generation = await self._store.increment(GENERATIONS)
        self._services.generation = generation
        if self._endpoint is None and not self.config.port:
            await self._listen()
        self._services.url = self._peers.here = self.url
        self._peers.secret = await self._cluster_secret()
        await self.directory.start()
        self._unwatch = self.directory.watch(self._brokers_changed)
        http_url = "" if self._endpoint is None else self._endpoint.http_url
        self._ownership = Ownership(
            BrokerRecord(id=self.id, url=self.url, http_url=http_url, generation=generation),
            self.directory,
            self._store,
            self.stores,
            OwnershipOptions(
                opened=self.controllers.store_opened,
                closing=self._store_closing,
                workers=self.config.workers,
                patience_s=self.config.lease_s,
            ),
        )
        await self._ownership.start()
        if not self._servers:
            await self._listen()
        self._tasks.spawn(self._sample_rates())
        self._tasks.spawn(Trimming(self.stores, self.topics, self._clock, self._retention_of).run())

    async def stop(self) -> None:
        """Answer what was taken, hang up, make everything durable. May be called at any stage of `start`."""
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
        if self._ownership is not None:
            await self._ownership.stop()
        self._unwatch()
        await self.directory.stop()

    async def _retention_of(self, namespace: str) -> Retention:
        kept_s = self.config.segment_retention_s
        return await self.records.retention(namespace, kept_s if kept_s >= 0 else None)

    def _store_failed(self, store: int, error: PersistenceError) -> None:
        _logger.critical("store %d cannot be used any more: %s", store, error)
        self.failed.set()

    async def _listen(self) -> None:
        if self._endpoint is not None:
            self._servers = await self._endpoint.listen(self._accept)
        else:
            server = await listen(self.config.host, self.config.port, self._accept)
            self._servers = [server]
            self._port = server.sockets[0].getsockname()[1]

    def serve(self, target: str, port: Port, local: Any) -> Any:
        """Let other brokers call `local` here, and return the port over all stores.

        Every verb names a place, and is done by the broker that owns it.
        """

        async def find(rest: str) -> Any:
            return local

        self._targets[target] = Target(port, find)
        return port.proxy(PlaceRouter(target, local, self._owns, self.directory, self._peers))

    async def owner_of(self, name: TopicName) -> BrokerRecord | None:
        """The broker that serves or leads a topic; None when any will do."""
        return await owner_of(self._services, name)

    def _owns(self, store: int) -> bool:
        return store in self.stores.opened

    async def _local_segments(self, rest: str) -> LocalSegments:
        return self.segments

    async def _local_leader(self, name: str) -> TopicController:
        return await self.controllers.lead(TopicName.parse(name))

    async def _cluster_secret(self) -> bytes:
        """What brokers of one cluster know each other by, made by the first of them."""
        with suppress(VersionConflictError):
            await self._store.put(SECRET, self._rng.randbytes(SECRET_BYTES), expected=ABSENT)
        found = await self._store.get(SECRET)
        assert found is not None
        return found.value

    def _brokers_changed(self) -> None:
        self._peers.keep([broker.url for broker in self.directory.brokers.values()])

    async def _store_closing(self, store: int) -> None:
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self.controllers.store_closing(store)
        except (AnabranchError, TimeoutError) as error:
            _logger.warning("not everything in store %d was left in order: %s", store, error)
        finally:
            self.topics.leave(store)

    async def _answer_all(self) -> None:
        """Take no more entries and let those taken become durable, so that nobody has to send one again."""
        for connection in self.connections:
            connection.stop_reading()
        for segment in self.topics.served:
            if not segment.producers.idle:
                try:
                    async with asyncio.timeout(FAREWELL_S):
                        await segment.log.flush()
                except (AnabranchError, TimeoutError) as error:
                    _logger.warning("%s: not everything was stored at the end: %s", segment.name, error)
                    return

    def _accept(self) -> Pump:
        loop = asyncio.get_running_loop()
        machine = ListeningMachine(
            now=loop.time(),
            keep_alive_s=self.config.keep_alive_s,
            max_message_bytes=self.config.max_message_bytes,
            features=FEATURES,
        )
        return Pump(machine, ServerConnection(self._services, HANDLERS, self.connections))

    async def _sample_rates(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.config.load_report_interval_s / RateMeter.SAMPLES)
            for number, segment in enumerate(self.topics.served):
                segment.sample(loop.time())
                if number % SAMPLED_AT_ONCE == 0:
                    await asyncio.sleep(0)
