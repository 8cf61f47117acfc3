"""The addresses, the credentials and the TLS of a command: from its options, the environment or client.conf.

An option wins over the environment, and the environment over client.conf. No error shows a secret.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from anabranch.admin.client import AdminClient
from anabranch.client.api import AsyncClient
from anabranch.client.blocking import Client
from anabranch.client.options import is_tls_url, parse_service_url
from anabranch.config.properties import parse_properties
from anabranch.credentials.authentication import Authentication
from anabranch.credentials.plugins import authentication_from
from anabranch.errors import ConnectError, InvalidConfigurationError
from anabranch.transport.tls_arguments import TlsArguments

SERVICE_URL: Final = "pulsar://127.0.0.1:6650"
ADMIN_URL: Final = "http://127.0.0.1:8080"
CONNECT_TIMEOUT_S: Final = 5.0

_TLS_FILES: Final = {
    "tlsTrustCertsFilePath": "tls_trust_certs_file_path",
    "tlsCertificateFilePath": "tls_certificate_file_path",
    "tlsKeyFilePath": "tls_private_key_file_path",
}
_TLS_FLAGS: Final = {
    "tlsAllowInsecureConnection": "tls_allow_insecure_connection",
    "tlsEnableHostnameVerification": "tls_validate_hostname",
}
"""By the name in client.conf: the argument of a client."""

_CREDENTIALS: Final = frozenset(
    ("ANABRANCH_TOKEN", "ANABRANCH_AUTH_PLUGIN", "ANABRANCH_AUTH_PARAMS", "ANABRANCH_CLIENT_CONF")
)


class RoleWords(Protocol):
    """The options of every command that talks to a broker; `url` and `admin_url` are read if they exist."""

    @property
    def token_file(self) -> str | None: ...
    @property
    def client_conf(self) -> str | None: ...
    @property
    def tls_trust_certs(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ClientRole:
    """All that a command needs to reach a broker."""

    service_url: str
    admin_url: str
    authentication: Authentication | None
    credentials: tuple[str, str] = field(repr=False)
    """The plugin behind `authentication` and its parameters; both are empty without credentials."""
    tls: TlsArguments

    def open_admin(self) -> AdminClient:
        tls = self.tls if self.admin_url.startswith("https:") else {}
        return AdminClient(self.admin_url, authentication=self.authentication, **tls)

    def connect(self) -> Client:
        """Return a client, or raise ConnectError at once if no broker answers."""
        self.check_reachable()
        return self.open_client()

    def check_reachable(self) -> None:
        """Raise ConnectError at once if no broker answers; a client would wait."""
        refused: OSError | None = None
        for address in parse_service_url(self.service_url):
            try:
                socket.create_connection(address, CONNECT_TIMEOUT_S).close()
                return
            except OSError as error:
                refused = error
        raise ConnectError(
            f"cannot reach a broker at {self.service_url}: {refused}; "
            "is `anabranch serve` running, with this --port?"
        )

    def open_client(self) -> Client:
        """Return a client that has not connected yet."""
        return Client(self.service_url, authentication=self.authentication, **self._service_tls())

    def open_async_client(self) -> AsyncClient:
        """Return the same for the running event loop."""
        return AsyncClient(self.service_url, authentication=self.authentication, **self._service_tls())

    def _service_tls(self) -> TlsArguments:
        return self.tls if is_tls_url(self.service_url) else {}


def role_of(options: RoleWords, environment: Mapping[str, str]) -> ClientRole:
    """Raises InvalidConfigurationError for contradicting or unreadable places."""
    file = options.client_conf or environment.get("ANABRANCH_CLIENT_CONF")
    conf = _read_conf(file) if file else {}
    credentials = _credentials(options.token_file, environment, conf)
    return ClientRole(
        getattr(options, "url", None)
        or environment.get("ANABRANCH_URL")
        or conf.get("brokerServiceUrl")
        or SERVICE_URL,
        getattr(options, "admin_url", None)
        or environment.get("ANABRANCH_ADMIN_URL")
        or conf.get("webServiceUrl")
        or ADMIN_URL,
        authentication_from(*credentials),
        credentials,
        _tls(options.tls_trust_certs or environment.get("ANABRANCH_TLS_TRUST_CERTS"), conf),
    )


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that uses the credentials of its options only."""
    return {name: value for name, value in environment.items() if name not in _CREDENTIALS}


def _read_conf(file: str) -> dict[str, str]:
    try:
        return parse_properties(Path(file).read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidConfigurationError(f"cannot read {file}: {reason}") from None


def _credentials(
    token_file: str | None, environment: Mapping[str, str], conf: Mapping[str, str]
) -> tuple[str, str]:
    if token_file:
        return "token", Path(token_file).absolute().as_uri()
    plugin, parameters = (environment.get(f"ANABRANCH_AUTH_{name}", "") for name in ("PLUGIN", "PARAMS"))
    if environment.get("ANABRANCH_TOKEN"):
        if plugin or parameters:
            raise InvalidConfigurationError("set ANABRANCH_TOKEN or ANABRANCH_AUTH_PLUGIN, not both")
        return "token", "env:ANABRANCH_TOKEN"
    if plugin or parameters:
        return plugin, parameters
    return conf.get("authPlugin", ""), conf.get("authParams", "")


def _tls(trust_file: str | None, conf: Mapping[str, str]) -> TlsArguments:
    found: TlsArguments = {}
    for name, argument in _TLS_FILES.items():
        if conf.get(name):
            found[argument] = conf[name]  # type: ignore[literal-required]
    for name, argument in _TLS_FLAGS.items():
        if conf.get(name):
            found[argument] = _flag(name, conf[name])  # type: ignore[literal-required]
    if trust_file:
        found["tls_trust_certs_file_path"] = trust_file
    return found


def _flag(name: str, text: str) -> bool:
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise InvalidConfigurationError(f"{name} in client.conf is {text!r}; write true or false")
    return words[text.lower()]
