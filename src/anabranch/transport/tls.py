"""TLS contexts: modern defaults for both ends, PEM files with clear errors, and the context of a client.

Brokers that call brokers, clients and the admin client share this module. It knows no setting by its name.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

from anabranch.errors import InvalidConfigurationError

TLS_SCHEME: Final = "pulsar+ssl"

AEAD_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers of TLS 1.2 with forward secrecy and authenticated encryption; TLS 1.3 has no others."""


def hardened(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context with TLS 1.2 or later, AEAD ciphers, and neither compression nor renegotiation."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(AEAD_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load the certificate that this end shows; raises InvalidConfigurationError."""

    def refuse_password() -> str:
        raise InvalidConfigurationError(
            f"the key {key} has a password; store it without one, readable by its owner only"
        )

    _check_readable(certificate, "certificate")
    _check_readable(key, "key")
    try:
        context.load_cert_chain(certificate, key, refuse_password)
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            text = f"the key {key} does not belong to the certificate {certificate}; give both of one pair"
        else:
            text = f"{certificate} and {key} are not a certificate and its key as PEM: {_reason(error)}"
        raise InvalidConfigurationError(text) from error


def load_trust(context: ssl.SSLContext, file: str) -> None:
    """Trust the authorities in a file; raises InvalidConfigurationError."""
    _check_readable(file, "file of trusted certificates")
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise InvalidConfigurationError(f"{file} holds no certificates as PEM: {_reason(error)}") from error


def _check_readable(file: str, what: str) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise InvalidConfigurationError(f"cannot read the {what} {file}: {error.strerror}") from error


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client checks the broker, and the certificate that it shows itself."""

    trust_file: str | None = None
    """Trusted authorities; those of the system if None."""
    certificate_file: str | None = None
    key_file: str | None = None
    allow_insecure: bool = False
    """Accept any certificate, so that an attacker in the middle can read and change everything."""
    validate_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Read the files; raises InvalidConfigurationError."""
        context = hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        if self.allow_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context.check_hostname = self.validate_hostname
            if self.trust_file is None:
                context.load_default_certs()
        if self.trust_file is not None:
            load_trust(context, self.trust_file)
        if self.certificate_file is not None or self.key_file is not None:
            if self.certificate_file is None or self.key_file is None:
                raise InvalidConfigurationError("a client certificate and its key are given together")
            load_chain(context, self.certificate_file, self.key_file)
        return context
