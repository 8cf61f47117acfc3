"""Source and sink over TLS, with a token and with a certificate of the client, as options of a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from anabranch import AuthenticationToken, Checkpoint, Client
from anabranch.spark.options.queries import read_source_options
from anabranch.spark.service import BrokerService, close_sessions
from anabranch.transport.tls_errors import TlsError
from simulation.harness.certificates import Authority, tls_settings
from simulation.harness.process import BrokerProcess
from tests.harness.security import SECURE, token_for
from tests.harness.spark_queries import run_to_end

# A machine that is busy takes long to start Spark.
pytestmark = pytest.mark.timeout(600)


def test_the_options_of_tls_and_of_a_token_reach_the_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    token = token_for("alice")
    settings = {**SECURE, "port": -1, **tls_settings(authority.server())}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        with Client(
            broker.tls_url,
            authentication=AuthenticationToken(token),
            tls_trust_certs_file_path=authority.file,
        ) as client:
            client.create_producer("orders").send_many([b"%d" % n for n in range(10)])
        given = {"service.url": broker.tls_url, "subscribe": "orders", "client.auth.token": token}
        trusting = read_source_options({**given, "client.tlsTrustCertsFilePath": authority.file})
        try:
            topology = BrokerService(broker.tls_url, trusting.client).reader().topology("orders")
            assert sum(tail.next for tail in topology.tails.values()) == 10
            doubting = read_source_options(given)
            with pytest.raises(TlsError):
                BrokerService(broker.tls_url, doubting.client).reader().topology("orders")
        finally:
            close_sessions()


def test_a_stream_shows_its_certificate_to_a_broker_without_plain_ports(spark: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, numbers = authority.client("app"), [b"%d" % n for n in range(300)]
    settings = {**tls_settings(authority.server(), authority.file), "tls_require_client_certificate": "true"}
    with BrokerProcess(tmp_path / "data", {**settings, "port": -1, "http_port": -1}) as broker:
        trusting = {"service.url": broker.tls_url, "client.tlsTrustCertsFilePath": authority.file}
        role = {"client.tlsCertificateFilePath": pair.certificate, "client.tlsKeyFilePath": pair.key}

        def copying(checkpoint: str, **shown: str) -> Any:
            read = {**trusting, **shown, "subscribe": "orders", "startingOffsets": "earliest"}
            rows = spark.readStream.format("anabranch").options(**read).load().select("key", "value")
            writer = rows.writeStream.format("anabranch").options(**trusting, **shown, topic="copy")
            writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
            return writer.trigger(availableNow=True)

        with Client(
            broker.tls_url,
            tls_trust_certs_file_path=authority.file,
            tls_certificate_file_path=pair.certificate,
            tls_private_key_file_path=pair.key,
        ) as client:
            client.create_producer("orders").send_many(numbers)
            run_to_end(copying("known", **role))
            consumer = client.create_checkpoint_consumer("copy", start=Checkpoint.earliest())
            copied: list[bytes] = []
            while messages := consumer.receive_many(1000, timeout=3):
                copied += [message.data for message in messages]
        assert sorted(copied) == sorted(numbers)
        with pytest.raises(StreamingQueryException, match="want a client certificate"):
            run_to_end(copying("unknown", **{"client.operationTimeout": "5s"}))
