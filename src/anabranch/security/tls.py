"""The TLS contexts of a broker, made from its files and followed when the files change.

A start fails with a clear error if a file cannot be used. Later, a broken file leaves the former context in
use. Connections that are open keep their context.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from anabranch.clock import Clock
from anabranch.config.fields import comma_list
from anabranch.config.tls import TlsConfig
from anabranch.errors import InvalidConfigurationError
from anabranch.transport.followed_context import FollowedContext
from anabranch.transport.tls import AEAD_CIPHERS, hardened, load_chain, load_trust

log = logging.getLogger(__name__)

EXPIRES_SOON = timedelta(days=14)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def server_context(settings: TlsConfig) -> ssl.SSLContext:
    """Return the context of a listening port; raises InvalidConfigurationError."""
    context = hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    _restrict(context, settings)
    # Connections last long, so clients need no tickets to resume sessions of TLS 1.3.
    context.num_tickets = 0
    load_chain(context, settings.tls_certificate_file, settings.tls_key_file)
    if settings.tls_trust_file and not settings.tls_allow_insecure:
        load_trust(context, settings.tls_trust_file)
        required = settings.tls_require_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def peer_context(settings: TlsConfig) -> ssl.SSLContext:
    """Return the context for calls to other brokers; raises InvalidConfigurationError."""
    context = hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    _restrict(context, settings)
    if settings.broker_client_certificate_file:
        load_chain(context, settings.broker_client_certificate_file, settings.broker_client_key_file)
    elif settings.tls_require_client_certificate:
        # A certificate that is only asked for is not shown: another authority may have issued it.
        load_chain(context, settings.tls_certificate_file, settings.tls_key_file)
    if settings.tls_allow_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context.check_hostname = settings.broker_client_hostname_verification
    # All brokers of a data directory have one certificate, which need not be one of an authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    load_trust(context, settings.tls_certificate_file)
    trust = settings.broker_client_trust_file or settings.tls_trust_file
    if trust:
        load_trust(context, trust)
    return context


def _restrict(context: ssl.SSLContext, settings: TlsConfig) -> None:
    versions = sorted(_VERSIONS[name] for name in settings.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    names = [openssl_name(name) for name in comma_list(settings.tls_ciphers)]
    try:
        context.set_ciphers(":".join(name for name in names if name is not None) or AEAD_CIPHERS)
    except ssl.SSLError as error:
        raise InvalidConfigurationError(
            f"setting tls_ciphers names no known cipher: {settings.tls_ciphers!r}; write for instance "
            "ECDHE-RSA-AES256-GCM-SHA384, or nothing for the default"
        ) from error


def openssl_name(cipher: str) -> str | None:
    """OpenSSL's name of a cipher that is named as in Java; None for TLS 1.3, whose ciphers are always on."""
    exchange, separator, rest = cipher.removeprefix("TLS_").partition("_WITH_")
    if separator:
        rest = rest.replace("AES_128", "AES128").replace("AES_256", "AES256")
        rest = rest.replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
        return f"{exchange}_{rest}".replace("_", "-")
    return None if cipher.startswith("TLS_") else cipher


def warnings_about(settings: TlsConfig, now: datetime) -> list[str]:
    """Return the weak points of the files that do not prevent a start."""
    found = []
    key = settings.tls_key_file
    if stat.S_IMODE(os.stat(key).st_mode) & 0o077:
        found.append(f"the key {key} can be read by others; run `chmod 600 {key}`")
    if settings.tls_allow_insecure:
        found.append("tls_allow_insecure is on: no certificate of a client or of another broker is verified")
    return found + _warnings_about_certificate(settings.tls_certificate_file, now)


def _warnings_about_certificate(file: str, now: datetime) -> list[str]:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificates(Path(file).read_bytes())[0]
    ends = certificate.not_valid_after_utc
    found = []
    if ends <= now:
        found.append(f"the certificate {file} expired on {ends:%Y-%m-%d}; clients refuse it")
    elif ends <= now + EXPIRES_SOON:
        found.append(f"the certificate {file} expires on {ends:%Y-%m-%d}; renew it")
    if certificate.not_valid_before_utc > now:
        found.append(
            f"the certificate {file} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d} on"
        )
    try:
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        found.append(f"the certificate {file} names no host (subjectAltName); clients refuse it")
    return found


@dataclass(frozen=True, slots=True)
class BrokerTls:
    """All contexts of one broker process."""

    server: FollowedContext
    peers: FollowedContext

    @classmethod
    def load(cls, settings: TlsConfig, clock: Clock) -> BrokerTls:
        """Read and check all files; raises InvalidConfigurationError."""
        own = [settings.tls_certificate_file, settings.tls_key_file, settings.tls_trust_file]
        others = [
            settings.broker_client_certificate_file,
            settings.broker_client_key_file,
            settings.broker_client_trust_file,
        ]

        def make_server() -> ssl.SSLContext:
            made = server_context(settings)
            now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
            for text in warnings_about(settings, now):
                log.warning("%s", text)
            return made

        return cls(
            FollowedContext(make_server, own),
            FollowedContext(lambda: peer_context(settings), [*own, *others]),
        )

    async def follow(self, interval_s: float) -> None:
        """Check the files for changes, for ever."""
        while True:
            await asyncio.sleep(interval_s or 1.0)
            self.server.refresh()
            self.peers.refresh()
