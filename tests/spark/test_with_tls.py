"""The client behind the source over TLS with a token, as options of a query give both; without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch import AuthenticationToken, Client
from anabranch.spark.live import LiveService, close_sessions
from anabranch.spark.options import read_source_options
from anabranch.testing.certificates import Authority, tls_settings
from anabranch.testing.process import BrokerProcess
from anabranch.transport.tls_errors import TlsError
from tests.harness.security import SECURE, token_for


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
            topology = LiveService(broker.tls_url, trusting.client).reader().topology("orders")
            assert sum(tail.next for tail in topology.tails.values()) == 10
            doubting = read_source_options(given)
            with pytest.raises(TlsError):
                LiveService(broker.tls_url, doubting.client).reader().topology("orders")
        finally:
            close_sessions()
