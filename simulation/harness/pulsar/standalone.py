"""One standalone Pulsar: broker and bookie in one process, with metadata in RocksDB instead of ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from simulation.harness.ports import free_port
from simulation.harness.pulsar.jars import SOON_JVM, PulsarJars, write_properties
from simulation.harness.pulsar.server_process import PulsarProcess, answers

MAIN: Final = "org.apache.pulsar.PulsarStandaloneStarter"
FAST_JVM: Final = ("-Xmx2g", "-XX:MaxDirectMemorySize=4g")
SMALL_JVM: Final = ("-Xmx768m", "-XX:MaxDirectMemorySize=512m", *SOON_JVM)
"""For tests: Pulsar starts faster, but runs slower."""


class PulsarStandalone(PulsarProcess):
    """A Pulsar on free ports of the loopback, with these settings on top of the defaults of this harness."""

    def __init__(
        self,
        jars: PulsarJars,
        scratch: Path,
        settings: Mapping[str, object] | None = None,
        jvm: Sequence[str] = SMALL_JVM,
        token: str = "",
    ) -> None:
        """`token` is of a role that may list topics, if the settings ask for one."""
        scratch.mkdir(parents=True, exist_ok=True)
        self.port, self.web_port = free_port(), free_port()
        given = _settings(self.port, self.web_port, settings or {})
        config = write_properties(scratch / "standalone.conf", given)
        self._token = token
        main = [MAIN, "--config", str(config), "-nss", "-nfw"]
        main += ["--bookkeeper-dir", str(scratch / "bookkeeper"), "--metadata-dir", str(scratch / "metadata")]
        super().__init__("pulsar", scratch, jars.command(scratch, jvm, main), self._is_open)

    def _is_open(self) -> bool:
        return answers(f"{self.http_url}/admin/v2/persistent/public/default", self._token)


def _settings(port: int, web_port: int, more: Mapping[str, object]) -> dict[str, object]:
    return {
        "clusterName": "standalone",
        "brokerServicePort": port,
        "webServicePort": web_port,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "allowLoopback": "true",
        "journalSyncData": "true",
        "brokerDeleteInactiveTopicsEnabled": "false",
        **more,
    }
