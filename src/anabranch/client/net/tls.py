"""The TLS of one client: made from its arguments before any connection, and followed when files change."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

from anabranch.client.options import ClientArguments, is_tls_url
from anabranch.credentials.authentication import AuthenticationTLS
from anabranch.errors import InvalidConfigurationError
from anabranch.transport.followed_context import FollowedContext
from anabranch.transport.tls import ClientTls

TlsOf = Callable[[], ssl.SSLContext]
"""Returns the context of the next connection."""

FILE_ARGUMENTS: Final = (
    "tls_trust_certs_file_path",
    "tls_certificate_file_path",
    "tls_private_key_file_path",
)
_ARGUMENTS: Final = ("tls", *FILE_ARGUMENTS, "tls_allow_insecure_connection")


def tls_of(service_url: str, given: ClientArguments) -> TlsOf | None:
    """The contexts of a client of this URL, None for a plain one; raises InvalidConfigurationError."""
    named = [name for name in _ARGUMENTS if given.get(name)]
    credentials = given.get("authentication")
    if not is_tls_url(service_url):
        if named or isinstance(credentials, AuthenticationTLS):
            what = named[0] if named else "AuthenticationTLS"
            raise InvalidConfigurationError(f"{what} needs a service URL that begins with pulsar+ssl://")
        return None
    context = given.get("tls")
    if context is not None:
        if len(named) > 1:
            raise InvalidConfigurationError(f"give tls or {named[1]}, not both")
        return lambda: context
    described = describe(given)
    files = (described.trust_file, described.certificate_file, described.key_file)
    followed = FollowedContext(described.context, [file for file in files if file])

    def current() -> ssl.SSLContext:
        followed.refresh()
        return followed()

    return current


def describe(given: ClientArguments) -> ClientTls:
    """The TLS that the arguments describe by files; AuthenticationTLS names the client's certificate too."""
    credentials = given.get("authentication")
    certificate = given.get("tls_certificate_file_path")
    key = given.get("tls_private_key_file_path")
    if isinstance(credentials, AuthenticationTLS):
        certificate, key = credentials.certificate_path, credentials.private_key_path
    return ClientTls(
        given.get("tls_trust_certs_file_path") or None,
        certificate or None,
        key or None,
        allow_insecure=given.get("tls_allow_insecure_connection", False),
        validate_hostname=given.get("tls_validate_hostname", True),
    )
