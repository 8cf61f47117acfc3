"""One broker: storage, controllers, topics and connections of one process, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import random

from anabranch.broker.connection import Connection, ListeningMachine
from anabranch.broker.epochs import TopicEpochs
from anabranch.broker.handlers.table import HANDLERS
from anabranch.broker.load import RateMeter
from anabranch.broker.local_segments import LocalSegments
from anabranch.broker.schemas import SchemaRegistry
from anabranch.broker.segment import Surroundings
from anabranch.broker.services import Services
from anabranch.broker.stores import StorageOf, Stores
from anabranch.broker.subscription import Limits
from anabranch.broker.tasks import Tasks
from anabranch.broker.topics import Topics
from anabranch.broker.trimming import Trimming
from anabranch.clock import Clock
from anabranch.config import BrokerConfig
from anabranch.controller.leading import ControllerSettings
from anabranch.controller.service import ControllerService
from anabranch.errors import AnabranchError
from anabranch.failpoints import Failpoints
from anabranch.metadata.port import MetadataStore
from anabranch.metadata.topics import TopicStore
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.pump import Pump, listen

_logger = logging.getLogger(__name__)

GENERATIONS = "/sequences/broker-start"

FAREWELL_S = 5.0
"""How long a stop waits for the disk before it hangs up."""

SAMPLED_AT_ONCE = 200
"""Logs whose rates are sampled in one turn of the loop; thousands in one would be felt."""

FEATURES = pb.FeatureFlags(
    supports_scalable_topics=True, supports_get_partitioned_metadata_without_auto_creation=True
)


class Broker:
    """Serves topics on one port; owns its storage while it runs, but not the metadata store."""

    def __init__(
        self,
        config: BrokerConfig,
        storage_of: StorageOf,
        store: MetadataStore,
        clock: Clock,
        rng: random.Random,
        failpoints: Failpoints,
    ) -> None:
        self.config = config
        self.records = TopicStore(store)
        self.connections: dict[Connection, None] = {}
        self._store = store
        self.stores = Stores(storage_of)
        self._clock = clock
        self._rng = rng
        self._failpoints = failpoints
        self._tasks = Tasks()
        epochs = TopicEpochs(store)
        self.topics = Topics(
            self.stores,
            self.records,
            Surroundings(
                clock=clock,
                spawn=self._tasks.spawn,
                limits=Limits(
                    batch_entries=config.dispatch_max_entries,
                    batch_bytes=config.dispatch_max_bytes,
                    unacked_max=config.max_unacked_per_subscription or 2**62,
                ),
                deduplicate=config.deduplication,
                rate_window_s=config.load_report_interval_s,
                epoch_of=epochs.current,
                next_epoch=epochs.next,
            ),
            auto_create=config.auto_create_topics,
        )
        self.segments = LocalSegments(self.topics)
        self.controllers = ControllerService(
            self.records,
            self.segments,
            clock,
            settings=ControllerSettings.from_config(config),
            failpoints=failpoints,
            rng=rng,
        )
        self.schemas = SchemaRegistry(store)
        self._services = Services(
            config, clock, self._tasks, self.records, self.topics, self.controllers, self.schemas
        )
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port it listens on, also when the configuration left the choice to the system."""
        assert self._server is not None, "the broker is not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = self.config.advertised_host or self.config.host
        return f"pulsar://[{host}]:{self.port}" if ":" in host else f"pulsar://{host}:{self.port}"

    async def start(self) -> None:
        """Recover what is stored, finish what was begun, then listen."""
        await self.stores.open(0)
        await self.records.ensure_defaults(self.config.cluster)
        self._services.generation = await self._store.increment(GENERATIONS)
        await self.controllers.start()
        self._server = await listen(self.config.host, self.config.port, self._accept)
        self._services.url = self.url
        self._tasks.spawn(self._sample_rates())
        if self.config.segment_retention_s >= 0:
            trimming = Trimming(self.stores, self.topics, self._clock, self.config.segment_retention_s)
            self._tasks.spawn(trimming.run())

    async def stop(self) -> None:
        """Answer what was taken, hang up, make everything durable. May be called at any stage of `start`."""
        if self._server is not None:
            self._server.close()
        await self._answer_all()
        for connection in list(self.connections):
            connection.hang_up()
        await self.controllers.stop()
        await self._tasks.stop()
        for connection in list(self.connections):
            connection.lost()
        for number in list(self.stores.opened):
            await self.stores.close(number)

    async def _answer_all(self) -> None:
        """Take no more entries and let those taken become durable, so that nobody has to send one again."""
        for connection in self.connections:
            connection.stop_reading()
        for segment in self.topics.served:
            if not segment.idle:
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
        return Pump(machine, Connection(self._services, HANDLERS, self.connections))

    async def _sample_rates(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.config.load_report_interval_s / RateMeter.SAMPLES)
            for number, segment in enumerate(self.topics.served):
                segment.sample(loop.time())
                if number % SAMPLED_AT_ONCE == 0:
                    await asyncio.sleep(0)
