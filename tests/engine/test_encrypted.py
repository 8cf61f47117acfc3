"""A control process that reaches Pulsar and ZooKeeper over TLS only, and shows each its certificate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch import AsyncAdminClient, AsyncClient, AuthenticationTLS
from simulation.harness.certificates import Authority, Pair
from simulation.harness.ports import free_port
from simulation.harness.pulsar.cluster import BROKER_SETTINGS
from simulation.harness.pulsar.control import ControlServer
from simulation.harness.pulsar.server_process import answers
from simulation.harness.pulsar.standalone import PulsarStandalone
from simulation.harness.pulsar.zookeeper import ZookeeperServer
from tests.harness.pulsar import find_jars
from tests.harness.splitting import assert_order_through_a_split

pytestmark = [pytest.mark.real_time, pytest.mark.long, pytest.mark.timeout(300)]


class Encrypted:
    """A Pulsar and a ZooKeeper that ask each client of their TLS ports for a certificate."""

    def __init__(self, scratch: Path) -> None:
        self.authority = Authority(scratch)
        self.server = self.authority.server()
        self.operator = self.authority.client("operator")
        self.port, self.web_port, self.store_port, self.control_port = (free_port() for _ in range(4))
        self.pulsar = PulsarStandalone(find_jars(), scratch / "pulsar", self._pulsar_settings())
        self.zookeeper = ZookeeperServer(
            find_jars(), scratch / "zookeeper", settings=self._zookeeper_settings(scratch)
        )

    def _pulsar_settings(self) -> dict[str, object]:
        return {
            **BROKER_SETTINGS,
            "brokerServicePortTls": self.port,
            "webServicePortTls": self.web_port,
            "tlsCertificateFilePath": self.server.certificate,
            "tlsKeyFilePath": self.server.key,
            "tlsTrustCertsFilePath": self.authority.file,
            "tlsRequireTrustedClientCertOnConnect": "true",
        }

    def _zookeeper_settings(self, scratch: Path) -> dict[str, object]:
        both = scratch / "both.pem"
        both.write_text(Path(self.server.certificate).read_text() + Path(self.server.key).read_text())
        return {
            "secureClientPort": self.store_port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": both,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": self.authority.file,
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        }

    def control(self, scratch: Path, number: int, shown: Pair) -> ControlServer:
        """A control process that shows a certificate, and serves its own clients over TLS too."""
        words = ["--pulsar-trust-certs", self.authority.file, "--metadata-trust-certs", self.authority.file]
        words += ["--pulsar-certificate", shown.certificate, "--pulsar-key", shown.key]
        words += ["--metadata-certificate", shown.certificate, "--metadata-key", shown.key]
        words += ["--tls-port", str(self.control_port)]
        words += ["--set", f"tls_certificate_file={self.server.certificate}"]
        words += ["--set", f"tls_key_file={self.server.key}"]
        return ControlServer(
            scratch,
            number,
            http_url=f"https://127.0.0.1:{self.web_port}",
            zookeeper_url=f"zk+tls://127.0.0.1:{self.store_port}/encrypted",
            more=words,
        )


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    made = Encrypted(tmp_path_factory.mktemp("encrypted"))
    try:
        made.zookeeper.start()
        made.pulsar.start()
        yield made
    finally:
        made.pulsar.kill()
        made.zookeeper.kill()


async def test_messages_pass_a_split_over_tls_alone(encrypted: Encrypted, tmp_path: Path) -> None:
    server = encrypted.control(tmp_path, 0, encrypted.operator)
    shown = AuthenticationTLS(encrypted.operator.certificate, encrypted.operator.key)
    try:
        server.start()
        client = AsyncClient(
            f"pulsar+ssl://127.0.0.1:{encrypted.control_port}",
            authentication=shown,
            tls_trust_certs_file_path=encrypted.authority.file,
        )
        async with AsyncAdminClient(server.http_url) as admin, client:
            await assert_order_through_a_split(client, admin, "encrypted")
    finally:
        server.stop()


def test_a_control_process_with_a_strange_certificate_is_refused(
    encrypted: Encrypted, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "other authority").client("operator")
    server = encrypted.control(tmp_path, 1, stranger)
    server.launch()
    try:
        until_s = time.monotonic() + 15
        while server.running and time.monotonic() < until_s:
            assert not answers(f"{server.http_url}/admin/v2/brokers/health")
            time.sleep(0.2)
    finally:
        server.kill()
