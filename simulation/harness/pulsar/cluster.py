"""A whole Pulsar cluster on this machine: ZooKeeper, bookies and brokers, each a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from simulation.harness.ports import free_port
from simulation.harness.pulsar.jars import SOON_JVM, PulsarJars, write_properties
from simulation.harness.pulsar.server_process import (
    READY_S,
    PulsarProcess,
    ServerProcess,
    listens,
    tethered,
)
from simulation.harness.pulsar.zookeeper import ZookeeperServer

CLUSTER: Final = "c1"
TICK_MS: Final = 500
SETUP_JVM: Final = ("-Xmx256m", "-XX:MaxDirectMemorySize=128m", *SOON_JVM)
BOOKIE_JVM: Final = ("-Xmx192m", "-XX:MaxDirectMemorySize=256m", *SOON_JVM)
BROKER_JVM: Final = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m", *SOON_JVM)

BROKER_SETTINGS: Final[Mapping[str, object]] = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "allowAutoTopicCreation": "false",
    "allowAutoSubscriptionCreation": "false",
    # Topics of a killed broker move when its session ends.
    "metadataStoreSessionTimeoutMillis": 5000,
    # A topic that fenced itself during a terminate opens again.
    "topicFencingTimeoutSeconds": 2,
    # One connection with this many pending requests would stay dead after such a terminate.
    "maxPendingPublishRequestsPerConnection": 1_000_000,
}
"""Settings that operators of scalable topics should have, too."""


class Bookie(ServerProcess):
    """One storage node."""

    def __init__(self, jars: PulsarJars, scratch: Path, name: str, zookeeper: ZookeeperServer) -> None:
        home = scratch / name
        home.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        settings: dict[str, object] = {
            "bookiePort": self.port,
            "bookieId": f"127.0.0.1:{self.port}",
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "advertisedAddress": "127.0.0.1",
            "metadataServiceUri": f"metadata-store:{zookeeper.pulsar_url}",
            "journalDirectories": home / "journal",
            "ledgerDirectories": home / "ledgers",
            "indexDirectories": home / "index",
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "dbStorage_writeCacheMaxSizeMb": 64,
            "dbStorage_readAheadCacheMaxSizeMb": 32,
            "journalSyncData": "true",
            "httpServerEnabled": "false",
        }
        config = write_properties(home / "bookie.conf", settings)
        main = ["org.apache.bookkeeper.server.Main", "--conf", str(config)]
        super().__init__(name, home, jars.command(home, BOOKIE_JVM, main), lambda: listens(self.port))


class PulsarBroker(PulsarProcess):
    """One broker; its storage is in the bookies."""

    def __init__(
        self,
        jars: PulsarJars,
        scratch: Path,
        name: str,
        zookeeper: ZookeeperServer,
        more: Mapping[str, object],
    ) -> None:
        home = scratch / name
        home.mkdir(parents=True, exist_ok=True)
        self.port, self.web_port = free_port(), free_port()
        settings: dict[str, object] = {
            "clusterName": CLUSTER,
            "metadataStoreUrl": zookeeper.pulsar_url,
            "configurationMetadataStoreUrl": zookeeper.pulsar_url,
            "brokerServicePort": self.port,
            "webServicePort": self.web_port,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "managedLedgerDefaultEnsembleSize": 2,
            "managedLedgerDefaultWriteQuorum": 2,
            "managedLedgerDefaultAckQuorum": 2,
            "managedLedgerCacheSizeMB": 64,
            **BROKER_SETTINGS,
            **more,
        }
        config = write_properties(home / "broker.conf", settings)
        main = ["org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(config)]
        super().__init__(name, home, jars.command(home, BROKER_JVM, main), self._is_healthy)


class PulsarCluster:
    """ZooKeeper, three bookies and two brokers, unless told otherwise; all start together.

    `added` are further processes, such as control processes: `add` starts one, and they stop first.
    """

    def __init__(
        self,
        jars: PulsarJars,
        scratch: Path,
        *,
        bookies: int = 3,
        brokers: int = 2,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """`settings` of the brokers are added to the defaults of this harness."""
        self.jars = jars
        self.scratch = scratch
        self.zookeeper = ZookeeperServer(jars, scratch, tick_ms=TICK_MS)
        self.bookies = [Bookie(jars, scratch, f"bookie-{n}", self.zookeeper) for n in range(bookies)]
        self.brokers = [
            PulsarBroker(jars, scratch, f"broker-{n}", self.zookeeper, settings or {}) for n in range(brokers)
        ]
        self.added: list[ServerProcess] = []

    @property
    def url(self) -> str:
        """All brokers, as a Pulsar client takes them."""
        return "pulsar://" + ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    @property
    def http_url(self) -> str:
        """The admin API of all brokers."""
        return "http://" + ",".join(f"127.0.0.1:{broker.web_port}" for broker in self.brokers)

    @property
    def zookeeper_url(self) -> str:
        """The path of Anabranch in the ZooKeeper of the cluster."""
        return f"{self.zookeeper.url}/anabranch"

    def processes(self) -> list[ServerProcess]:
        """All processes in the order of their start."""
        return [self.zookeeper, *self.bookies, *self.brokers, *self.added]

    def start(self) -> Self:
        try:
            self.zookeeper.start()
            self._set_up()
            for group in (self.bookies, self.brokers):
                for process in group:
                    process.launch()
                for process in group:
                    process.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def add(self, process: ServerProcess) -> None:
        """Start one more process, which stops before the brokers."""
        self.added.append(process)
        process.start()

    def stop(self) -> None:
        """Stop brokers before bookies before ZooKeeper: each needs the next one to stop quickly."""
        for group in (self.added, self.brokers, self.bookies, [self.zookeeper]):
            for process in group:
                process.terminate()
            for process in group:
                process.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _set_up(self) -> None:
        """Write the cluster into ZooKeeper, once."""
        store, broker = self.zookeeper.pulsar_url, self.brokers[0]
        main = ["org.apache.pulsar.PulsarClusterMetadataSetup", "--cluster", CLUSTER]
        main += ["--metadata-store", store, "--configuration-metadata-store", store]
        main += ["--web-service-url", broker.http_url, "--broker-service-url", broker.url]
        command = tethered(self.jars.command(self.scratch, SETUP_JVM, main))
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
        if done.returncode:
            raise RuntimeError(
                f"the cluster could not be set up:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
            )
