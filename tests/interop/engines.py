"""The engines that the client suite runs on: where each is reached, and its known limits.

An engine is a broker, or several, that our client and our admin client can use. Another one needs a function
that starts it here, its name in `ENGINES`, and its limits; docs/pulsar-5.md has a line for each limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Flag, auto
from itertools import count
from pathlib import Path

import pytest

from anabranch.admin.client.asynchronous.client import AsyncAdminClient
from anabranch.client.api import AsyncClient
from benchmarks.peers.pulsar_peer import PulsarPeer, PulsarServer
from simulation.harness.process import BrokerProcess
from simulation.harness.pulsar.control import ControlServer
from simulation.harness.pulsar.jars import LTS
from simulation.harness.pulsar.standalone import SMALL_JVM
from tests.harness.pulsar import EngineAddresses

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": 20,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "defaultRetentionTimeInMinutes": 60,
    "defaultRetentionSizeInMB": 100,
    "scalableTopicConsumerSessionGracePeriodSeconds": 1,
    "scalableTopicAutoScaleEnabled": "false",
}
"""Ledgers are short, so that every read crosses several of them, and the share of a consumer is soon free."""

SCALABLE = "5.0.0-M1"
"""The version of Apache Pulsar that has scalable topics."""


CONTROL = f"control-{LTS}"
"""A control process over the version that has none; the short form of `make engine` runs it."""

CONTROL_CLUSTER = "control-cluster"
"""The same over a whole cluster: three bookies and two brokers; `make engine` runs it."""

CONTROL_SCALABLE = f"control-{SCALABLE}"
"""A control process over the version that has scalable topics of its own, which it does not use."""


class EngineLimit(Flag):
    """A feature of our broker that an engine lacks."""

    NONE = 0
    CREATION = auto()
    """A scalable topic is not created by its first use."""
    MOVING = auto()
    """Clients neither move nor delete subscriptions of scalable topics."""
    GENERATIONS = auto()
    """A sealed segment is assigned before its parents are read, to a member that is behind."""
    EXPLAINING = auto()
    """The broker has no calls beyond those of Pulsar."""
    CLASSIC_CREATION = auto()
    """Neither a classic topic nor its subscription is created by its first use."""


@dataclass(frozen=True)
class RunningEngine:
    """A running engine."""

    name: str
    service_url: str
    admin_url: str
    limits: EngineLimit = EngineLimit.NONE
    below_url: str = ""
    """The admin address of a Pulsar that stores the messages, if that is another process."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def client(self) -> AsyncClient:
        return AsyncClient(self.service_url)

    def admin(self) -> AsyncAdminClient:
        return AsyncAdminClient(self.admin_url)

    def lacks(self, limit: EngineLimit) -> bool:
        return limit in self.limits

    def new_name(self, word: str) -> str:
        """A name that no other test uses."""
        return f"{word}-{next(self._numbers)}"

    async def new_topic(self, word: str, segments: int = 1) -> str:
        """Create a scalable topic for one test."""
        name = f"topic://public/default/{self.new_name(word)}"
        async with self.admin() as admin:
            await admin.create_topic(name, segments=segments)
        return name

    async def new_namespace(self, word: str, **policies: object) -> str:
        """Create a namespace with policies for one test, also at the process that stores the messages."""
        name = f"public/{self.new_name(word)}"
        for url in filter(None, (self.below_url, self.admin_url)):
            async with AsyncAdminClient(url) as admin:
                await admin.create_namespace(name)
                for policy, value in policies.items():
                    await admin.set_policy(name, policy, value)
        return name

    async def new_classic_topic(self, word: str, partitions: int = 0) -> str:
        """The name of a classic topic for one test, which is created unless its first use creates it."""
        name = f"persistent://public/default/{self.new_name(word)}"
        if partitions or self.lacks(EngineLimit.CLASSIC_CREATION):
            async with self.admin() as admin:
                await admin.create_classic_topic(name, partitions)
        return name


@contextmanager
def anabranch_engine(scratch: Path) -> Iterator[RunningEngine]:
    settings = {
        "consumer_grace_s": 1,
        "auto_scale_interval_s": 1,
        "scalableTopicAutoScaleEnabled": "false",
    }
    with BrokerProcess(scratch / "data", settings) as process:
        yield RunningEngine("anabranch", process.url, process.http_url)


class PulsarServers:
    """Servers of Apache Pulsar, each started once and kept until the last test."""

    def __init__(self, scratch: Callable[[str], Path]) -> None:
        self._scratch = scratch
        self._running: dict[str, PulsarServer] = {}
        self._stack = ExitStack()

    def started(self, version: str) -> PulsarServer:
        if version not in self._running:
            peer = PulsarPeer.find(version)
            if peer is None:
                pytest.fail(f"Pulsar {version} could not be resolved; these tests need JDK 17 with Maven")
            started = peer.started(self._scratch("pulsar") / version, SETTINGS, SMALL_JVM)
            self._running[version] = self._stack.enter_context(started)
        return self._running[version]

    def stop(self) -> None:
        self._stack.close()


def pulsar_engine(servers: PulsarServers) -> RunningEngine:
    server = servers.started(SCALABLE)
    limits = EngineLimit.CREATION | EngineLimit.MOVING | EngineLimit.GENERATIONS | EngineLimit.EXPLAINING
    return RunningEngine(f"pulsar-{SCALABLE}", server.url, server.http_url, limits)


@contextmanager
def control_engine(scratch: Path, below: EngineAddresses) -> Iterator[RunningEngine]:
    """A control process over a Pulsar that has no scalable topics."""
    server = ControlServer(scratch, 0, http_url=below.http_url, zookeeper_url=below.zookeeper_url)
    try:
        server.start()
        # A cluster has several addresses; each of its brokers answers.
        one_address = below.http_url.partition(",")[0]
        yield RunningEngine(CONTROL, server.url, server.http_url, EngineLimit.CLASSIC_CREATION, one_address)
    finally:
        server.stop()


ENGINES = os.environ.get("ENGINES", f"anabranch pulsar-{SCALABLE}").split()
"""The engines to test."""
