"""A real ZooKeeper from Pulsar's jars."""

from __future__ import annotations

import socket
from pathlib import Path

from simulation.harness.ports import free_port
from simulation.harness.pulsar.jars import SOON_JVM, PulsarJars, write_properties
from simulation.harness.pulsar.server_process import ServerProcess

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
TICK_MS = 100
"""The shortest session is two ticks; ZooKeeper ends sessions on ticks."""


class ZookeeperServer(ServerProcess):
    """One server on a free port of the loopback; its sessions last two ticks at least."""

    def __init__(
        self,
        jars: PulsarJars,
        scratch: Path,
        *,
        tick_ms: int = TICK_MS,
        settings: dict[str, object] | None = None,
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        config: dict[str, object] = {
            "tickTime": tick_ms,
            "minSessionTimeout": 2 * tick_ms,
            "maxSessionTimeout": 60_000,
            "dataDir": scratch / "zookeeper",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            **(settings or {}),
        }
        file = write_properties(scratch / "zk.cfg", config)
        jvm = ("-Xmx128m", "-XX:MaxDirectMemorySize=64m", *SOON_JVM)
        super().__init__("zookeeper", scratch, jars.command(scratch, jvm, [MAIN, str(file)]), self._answers)

    @property
    def url(self) -> str:
        """The address as `ZookeeperStore` takes it."""
        return f"zk://127.0.0.1:{self.port}"

    @property
    def pulsar_url(self) -> str:
        """The address as Pulsar's own processes take it."""
        return f"zk:127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"srvr")
                return b"Mode:" in connection.makefile("rb").read()
        except OSError:
            return False
