"""Credentials of an application: tokens, certificates, user names with passwords, and classes of its own.

The names and arguments are those of Pulsar's Python client. No `repr` and no error shows a secret.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from anabranch.arguments import check_text
from anabranch.credentials.parameters import one_of_names, parse_parameters, refuse_unknown
from anabranch.credentials.secret_sources import is_place, secret_reader
from anabranch.errors import AuthenticationError, InvalidConfigurationError

HIDDEN = "<hidden>"

TokenSupplier = Callable[[], str | bytes | Awaitable[str | bytes]]


@runtime_checkable
class Authentication(Protocol):
    """Credentials of any class: an application may write its own, without a base class.

    A class may also have these coroutine functions: `respond(challenge: bytes) -> bytes` answers the
    challenge of a broker that asks in several rounds, `http_headers(host: str) -> Mapping[str, str]` lets
    AdminClient use the class, and `close()` is called by a client that closes. A class that keeps its
    credentials for a while has a function `renew()`, called when a broker refuses them or asks for new ones.

    Example:
        credentials: Authentication = AuthenticationToken("env:TOKEN")
    """

    @property
    def method_name(self) -> str:
        """The name of the method as the broker knows it, such as `token`."""

    async def auth_data(self, host: str) -> bytes:
        """Return fresh credentials for a broker.

        It is called for each connection, and whenever the broker asks again.
        """


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "X-Pulsar-Auth-Method-Name": "token"}


class AuthenticationToken:
    """A token: itself, a place (`file:///path`, `env:NAME`), or a function that returns it.

    Place and function are asked for each connection and whenever the broker asks for a fresh token. A
    function is called in the client's event loop and must return at once; one that needs time is a
    coroutine function.

    Example:
        client = Client("pulsar://127.0.0.1:6650", authentication=AuthenticationToken("file:///run/secrets/token"))
    """

    method_name = "token"

    def __init__(self, token: str | TokenSupplier) -> None:
        if not isinstance(token, str) and not callable(token):
            raise InvalidConfigurationError("token must be text or a function that returns the token")
        self._shown = token if isinstance(token, str) and is_place(token) else HIDDEN
        self._supplier: TokenSupplier = secret_reader(token) if isinstance(token, str) else token

    def __repr__(self) -> str:
        return f"AuthenticationToken({self._shown})"

    async def _token(self) -> str:
        found = self._supplier()
        token = await found if inspect.isawaitable(found) else found
        text = token.decode(errors="replace") if isinstance(token, bytes) else token
        if not isinstance(text, str) or not text.strip():
            raise AuthenticationError("the supplier of the token returned no token")
        text = text.strip()
        if not text.isascii() or not text.isprintable() or " " in text:
            raise AuthenticationError("the token contains characters that no token has")
        return text

    async def auth_data(self, host: str) -> bytes:
        """Return the credentials for a broker, as its connections carry them."""
        return (await self._token()).encode()

    async def http_headers(self, host: str) -> Mapping[str, str]:
        """Return the headers that prove the role in a request over HTTP."""
        return bearer(await self._token())

    @classmethod
    def from_parameters(cls, text: str) -> AuthenticationToken:
        """Return the token in Pulsar's `authParams`: `token:secret`, `file:///path`, `env:NAME` or JSON."""
        if not text.strip().startswith("{"):
            return cls(text.strip())
        given = parse_parameters(text)
        refuse_unknown(given, ("token", "file", "env"), "AuthenticationToken")
        if len(given) != 1:
            raise InvalidConfigurationError("give AuthenticationToken one of token, file and env")
        ((kind, value),) = given.items()
        return cls(value if kind == "token" or is_place(value) else f"{kind}:{value}")


class AuthenticationTLS:
    """A client certificate and its private key, both files in PEM; the service URL must be `pulsar+ssl://`.

    Example:
        credentials = AuthenticationTLS("client.pem", "client.key")
    """

    method_name = "tls"

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        self.certificate_path = _path("certificate_path", certificate_path)
        self.private_key_path = _path("private_key_path", private_key_path)

    def __repr__(self) -> str:
        return f"AuthenticationTLS({self.certificate_path!r}, {self.private_key_path!r})"

    async def auth_data(self, host: str) -> bytes:
        """Return the credentials for a broker, as its connections carry them."""
        return b""

    async def http_headers(self, host: str) -> Mapping[str, str]:
        """Return the headers that prove the role in a request over HTTP."""
        return {"X-Pulsar-Auth-Method-Name": "tls"}

    @classmethod
    def from_parameters(cls, text: str) -> AuthenticationTLS:
        """Return the files in Pulsar's `authParams`: `tlsCertFile:/path,tlsKeyFile:/path` or JSON."""
        given = parse_parameters(text)
        refuse_unknown(given, ("tlsCertFile", "tlsKeyFile"), "AuthenticationTLS")
        return cls(given.get("tlsCertFile", ""), given.get("tlsKeyFile", ""))


class AuthenticationBasic:
    """A user name and a password; or both in JSON, as `auth_params_string`.

    Example:
        client = Client("pulsar://127.0.0.1:6650", authentication=AuthenticationBasic("alice", "secret"))
    """

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        if auth_params_string is not None:
            if username is not None or password is not None:
                raise InvalidConfigurationError("give username and password, or auth_params_string, not both")
            given = parse_parameters(auth_params_string)
            refuse_unknown(given, ("username", "userId", "password", "method"), "AuthenticationBasic")
            username = one_of_names(given, ("username", "userId"))
            password, method = given.get("password"), given.get("method", method)
        for name, value in (("username", username), ("password", password)):
            if value is not None and not isinstance(value, str):
                # The value may be a secret.
                raise InvalidConfigurationError(f"{name} must be text, not {type(value).__name__}")
        check_text("method", method)
        if not username or password is None:
            raise InvalidConfigurationError("AuthenticationBasic needs a username and a password")
        if ":" in username:
            raise InvalidConfigurationError("the username must not contain a colon")
        self.method_name = method
        self._username = username
        self._password = password

    def __repr__(self) -> str:
        return f"AuthenticationBasic({self._username!r}, {HIDDEN})"

    async def auth_data(self, host: str) -> bytes:
        """Return the credentials for a broker, as its connections carry them."""
        return f"{self._username}:{self._password}".encode()

    async def http_headers(self, host: str) -> Mapping[str, str]:
        """Return the headers that prove the role in a request over HTTP."""
        encoded = base64.b64encode(await self.auth_data(host)).decode()
        return {"Authorization": f"Basic {encoded}", "X-Pulsar-Auth-Method-Name": self.method_name}

    @classmethod
    def from_parameters(cls, text: str) -> AuthenticationBasic:
        """Return user and password from `authParams`: JSON with userId or username, and password."""
        return cls(auth_params_string=text)


def _path(name: str, value: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidConfigurationError(f"{name} must be the path of a PEM file")
    return value
