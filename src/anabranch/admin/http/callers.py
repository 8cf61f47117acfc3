"""The caller of an HTTP request: its credentials are proven before any route is looked at."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from anabranch.admin.http.answers import reason
from anabranch.admin.http.calls import CALLER, METRICS_PATHS
from anabranch.broker.broker import Broker
from anabranch.errors import AuthenticationError
from anabranch.security.authentication import Shown
from anabranch.security.gate import Gate, Original
from anabranch.security.refusals import RefusedCredentialsError

CERTIFICATE: Final = "certificate"
"""The key of the client's certificate in the state of a request."""


def authenticated(app: ASGIApp, broker: Broker, open_paths: Collection[str]) -> ASGIApp:
    """Answer 401 to requests without valid credentials; other requests have their caller in the scope.

    `open_paths` need no credentials.
    """
    gate = broker.gate
    without = frozenset((*open_paths, *(() if broker.config.authenticate_metrics else METRICS_PATHS)))

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not gate.is_open and scope["path"] not in without:
            try:
                scope[CALLER] = await _prove(gate, scope)
            except AuthenticationError as error:
                refused = reason(401, str(error))
                for scheme in _schemes(gate):
                    refused.headers.append("WWW-Authenticate", scheme)
                await refused(scope, receive, send)
                return
        await app(scope, receive, send)

    return ask


async def _prove(gate: Gate, scope: Scope) -> Any:
    headers = {name.lower(): value for name, value in scope["headers"]}
    host, port = scope.get("client") or ("unknown", 0)
    address = f"{host}:{port}"
    certificate = scope.get("state", {}).get(CERTIFICATE)
    original = Original(headers.get(b"x-original-principal", b"").decode("utf-8", "replace"))
    try:
        _check_unambiguous(scope)
        method, credentials = _credentials(headers, bool(certificate))
    except RefusedCredentialsError as error:
        gate.refuse(Shown("http", b"", address), f"{scope['method']} {scope['path']}", error.reason)
        raise
    shown = Shown(method, credentials, address, certificate)
    return await gate.admit(shown, f"{scope['method']} {scope['path']}", original)


def _check_unambiguous(scope: Scope) -> None:
    """Refuse a request with two values of one header that proves a role: a proxy may see the other one."""
    names = [name.lower() for name, _ in scope["headers"]]
    for proving in (b"authorization", b"x-original-principal"):
        if names.count(proving) > 1:
            raise RefusedCredentialsError(f"the request has several headers {proving.decode()}")


def _credentials(headers: Mapping[bytes, bytes], has_certificate: bool) -> tuple[str, bytes]:
    """Return the method and the credentials of a request."""
    given = headers.get(b"authorization", b"")
    if not given:
        return ("tls" if has_certificate else "none"), b""
    scheme, _, text = given.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return "token", text.strip()
    if scheme.lower() == b"basic":
        try:
            return "basic", base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            raise RefusedCredentialsError("the header Authorization is not base64") from None
    raise RefusedCredentialsError("the header Authorization has an unknown scheme")


def _schemes(gate: Gate) -> list[str]:
    """Return the schemes that a client may use, as `WWW-Authenticate` names them."""
    methods = gate.authentication.methods if gate.authentication is not None else {}
    schemes = {"token": "Bearer", "basic": 'Basic realm="anabranch", charset="UTF-8"'}
    return [scheme for method, scheme in schemes.items() if method in methods] or ["Bearer"]
