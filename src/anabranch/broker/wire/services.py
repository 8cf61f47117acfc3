"""What the connections of one broker share."""

from __future__ import annotations

from anabranch.aio import TaskRegistry
from anabranch.broker.catalog.schemas import SchemaRegistry
from anabranch.broker.catalog.topics import Topics
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.cluster.peers import Peers, Targets
from anabranch.clock import Clock
from anabranch.config import BrokerConfig
from anabranch.controller.service import ControllerService
from anabranch.metadata.topics import TopicStore


class Services:
    """The parts of a broker that handlers call on."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        tasks: TaskRegistry,
        records: TopicStore,
        topics: Topics,
        controllers: ControllerService,
        schemas: SchemaRegistry,
        directory: Directory,
        peers: Peers,
        targets: Targets,
    ) -> None:
        self.config = config
        self.clock = clock
        self.tasks = tasks
        self.records = records
        self.topics = topics
        self.controllers = controllers
        self.schemas = schemas
        self.directory = directory
        self.peers = peers
        self.targets = targets
        """What other brokers may call here."""
        self.url = ""
        """Where clients reach this broker; known once it listens."""
        self.generation = 0
        """Number of this start of the broker, in the names it makes up for producers."""
        self._names_made = 0

    def make_producer_name(self) -> str:
        """A name that no producer of this cluster ever had."""
        name = f"{self.config.cluster}-{self.generation}-{self._names_made}"
        self._names_made += 1
        return name
