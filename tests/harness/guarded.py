"""A Pulsar that asks each client for a token, and control processes over it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from simulation.harness.pulsar.cluster import BROKER_SETTINGS
from simulation.harness.pulsar.control import ControlServer
from simulation.harness.pulsar.standalone import PulsarStandalone
from tests.harness.pulsar import find_jars
from tests.harness.security import SECURE, token_for

OPERATOR = "operator"
TOKEN = token_for(OPERATOR)
TOKENS = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
SETTINGS = {
    **BROKER_SETTINGS,
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationProviders": TOKENS,
    "tokenSecretKey": SECURE["token_secret_key"],
    "superUserRoles": OPERATOR,
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "brokerClientAuthenticationParameters": f"token:{TOKEN}",
}


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarStandalone]:
    """A Pulsar in which one role may do everything, and others nothing."""
    pulsar = PulsarStandalone(find_jars(), tmp_path_factory.mktemp("guarded"), SETTINGS, token=TOKEN)
    try:
        pulsar.start()
        yield pulsar
    finally:
        pulsar.kill()


@contextmanager
def control_of(
    pulsar: PulsarStandalone, zookeeper_url: str, scratch: Path, more: Sequence[str] = ()
) -> Iterator[ControlServer]:
    """A control process with the token of the operator; `more` are further arguments."""
    file = scratch / "token"
    file.touch(mode=0o600)
    file.write_text(TOKEN)
    words = ("--pulsar-token-file", str(file), *more)
    server = ControlServer(scratch, 0, http_url=pulsar.http_url, zookeeper_url=zookeeper_url, more=words)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def allow(guarded: PulsarStandalone, role: str, *rights: str) -> None:
    """Give a role rights in the default namespace."""
    request = urllib.request.Request(
        f"{guarded.http_url}/admin/v2/namespaces/public/default/permissions/{role}",
        method="POST",
        data=json.dumps(rights).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=60):
        pass
