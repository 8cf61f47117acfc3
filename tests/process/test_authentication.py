"""Real brokers that ask for credentials: every method at once."""

from __future__ import annotations

import base64
import http.client
import json
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from anabranch import AuthenticationBasic, AuthenticationTLS, AuthenticationToken, Client
from anabranch.errors import AuthenticationError
from simulation.harness.certificates import Authority, tls_settings
from simulation.harness.process import BrokerProcess
from tests.harness.issuer import Issuer
from tests.process.conftest import MakeBroker


def audit_of(broker: BrokerProcess) -> list[dict[str, Any]]:
    file = broker.data / "audit.log"
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    # No header chooses the address that is logged, and whose failures are counted.
    assert all(line["address"].startswith("127.0.0.1:") for line in lines)
    return lines


def status_of(broker: BrokerProcess, authorization: str | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=30)
    headers = {"x-forwarded-for": "192.0.2.1"}
    if authorization is not None:
        headers["authorization"] = authorization
    connection.request("GET", "/admin/v2/tenants", headers=headers)
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_method_is_accepted_side_by_side_by_two_workers(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    users = tmp_path / "users"
    users.write_text(f"bob:{bcrypt.hashpw(b'open sesame', bcrypt.gensalt(4)).decode()}\n")
    users.chmod(0o600)
    with Issuer({}) as issuer:
        broker = make_broker(
            workers=2,
            authentication="true",
            authentication_providers="openid,tls,basic",
            basic_auth_file=users,
            openid_issuers=issuer.url,
            openid_audiences="broker",
            openid_require_https="false",
            **tls_settings(authority.server(), authority.file),
        ).start()
        pair = authority.client("carol")
        issued = issuer.token("alice", aud="broker")
        ways: list[tuple[str, Any]] = [
            (broker.url, AuthenticationToken(issued)),
            (broker.url, AuthenticationBasic("bob", "open sesame")),
            (broker.tls_url, AuthenticationTLS(pair.certificate, pair.key)),
        ]
        for url, authentication in ways:
            trusted: dict[str, Any] = {}
            if url == broker.tls_url:
                trusted = {"tls_trust_certs_file_path": authority.file}
            with Client(url, authentication=authentication, **trusted) as client:
                client.create_producer("orders").send(b"one")
        for wrong in (
            AuthenticationToken(issuer.token("alice", aud="elsewhere")),
            AuthenticationToken(issuer.token("alice", aud="broker", expires_s=-5)),
            AuthenticationBasic("bob", "wrong"),
        ):
            with (
                Client(broker.url, authentication=wrong) as client,
                pytest.raises(AuthenticationError, match="authentication failed"),
            ):
                client.create_producer("orders")
        right = base64.b64encode(b"bob:open sesame").decode()
        shown = [None, f"Bearer {issued}", f"Basic {right}", "Bearer rubbish", "Basic Ym9iOndyb25n"]
        assert [status_of(broker, one) for one in shown] == [401, 200, 200, 401, 401]
    broker.stop()
    lines = audit_of(broker)
    assert {line["outcome"] for line in lines} == {"refused"}
    assert any("audience" in line["reason"] for line in lines)
    assert "sesame" not in (broker.data / "audit.log").read_text() + broker.log_text
    assert issued not in broker.log_text
