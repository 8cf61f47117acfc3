"""The TLS context of a client: made from its arguments before it connects, and renewed with its files.

The names of the arguments are those of Pulsar's Python client.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from types import NoneType
from typing import Final, TypedDict

from anabranch.arguments import check_flag, check_optional, of_kind
from anabranch.credentials.authentication import Authentication, AuthenticationTLS
from anabranch.errors import InvalidConfigurationError
from anabranch.transport.followed_context import FollowedContext
from anabranch.transport.tls import ClientTls

TlsOf = Callable[[], ssl.SSLContext]
"""Returns the context of the next connection."""


class TlsArguments(TypedDict, total=False):
    """Arguments of a client whose URL asks for TLS."""

    tls: ssl.SSLContext | None
    """A whole context; the other arguments describe one by files instead."""
    tls_trust_certs_file_path: str | None
    """Certificates of trusted authorities, as PEM; those of the system if not given."""
    tls_certificate_file_path: str | None
    """The certificate that the client shows, as PEM, with its key in `tls_private_key_file_path`."""
    tls_private_key_file_path: str | None
    tls_allow_insecure_connection: bool
    """Accept every certificate of a broker; for tests only."""
    tls_validate_hostname: bool
    """Check that the certificate names the host of the broker; True unless it is switched off."""


_FILES: Final = ("tls_trust_certs_file_path", "tls_certificate_file_path", "tls_private_key_file_path")
_NAMES: Final = ("tls", *_FILES, "tls_allow_insecure_connection")


def tls_of(
    url: str, scheme: str, given: TlsArguments, authentication: Authentication | None = None
) -> TlsOf | None:
    """Return the TLS contexts of a client, or None if its URL does not have the TLS `scheme`.

    Raise InvalidConfigurationError if the arguments contradict each other.
    """
    _check(given)
    named = [name for name in _NAMES if given.get(name)]
    if not url.strip().startswith(f"{scheme}://"):
        if named or isinstance(authentication, AuthenticationTLS):
            what = named[0] if named else "AuthenticationTLS"
            raise InvalidConfigurationError(f"{what} needs a URL that begins with {scheme}://")
        return None
    context = given.get("tls")
    if context is not None:
        if len(named) > 1:
            raise InvalidConfigurationError(f"give tls or {named[1]}, not both")
        return lambda: context
    described = _describe(given, authentication)
    files = (described.trust_file, described.certificate_file, described.key_file)
    followed = FollowedContext(described.context, [file for file in files if file])

    def current() -> ssl.SSLContext:
        followed.refresh()
        return followed()

    return current


def _check(given: TlsArguments) -> None:
    check_optional("tls", given.get("tls"), ssl.SSLContext, "an ssl.SSLContext")
    for name in _FILES:
        of_kind(name, given.get(name), (str, os.PathLike, NoneType), "the path of a PEM file")
    # A text such as "false" would switch a check off.
    check_flag("tls_allow_insecure_connection", given.get("tls_allow_insecure_connection", False))
    check_flag("tls_validate_hostname", given.get("tls_validate_hostname", True))


def _describe(given: TlsArguments, authentication: Authentication | None) -> ClientTls:
    certificate = given.get("tls_certificate_file_path")
    key = given.get("tls_private_key_file_path")
    if isinstance(authentication, AuthenticationTLS):
        certificate, key = authentication.certificate_path, authentication.private_key_path
    return ClientTls(
        given.get("tls_trust_certs_file_path") or None,
        certificate or None,
        key or None,
        allow_insecure=given.get("tls_allow_insecure_connection", False),
        validate_hostname=given.get("tls_validate_hostname", True),
    )
