"""Says why TLS with a broker failed, and what to do about it."""

from __future__ import annotations

import ssl
from typing import Final

from anabranch.errors import ConnectError

_HOSTNAME_MISMATCH: Final = (62, 64)
"""OpenSSL's codes for a certificate that names another host or another IP address."""
_EXPIRED: Final = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or no longer valid."""


class TlsError(ConnectError):
    """TLS with the broker failed, and another attempt would fail too: the text says what to change."""

    retryable = False


def explain(error: OSError, where: str) -> ConnectError:
    """Return the error for the caller; a TlsError if another attempt would fail the same way."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(f"the certificate of {where} is refused: {_certificate_fault(error)}")
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return TlsError(
            f"{where} does not speak TLS; give its TLS port, or use pulsar:// or http:// for its plain port"
        )
    if reason is not None and "ALERT" in reason:
        return TlsError(f"{where} refused the TLS handshake: {_words(reason)}; {_CERTIFICATE_HINT}")
    if reason is not None and "UNEXPECTED_EOF" not in reason:
        return TlsError(f"TLS with {where} failed: {_words(reason)}")
    return ConnectError(
        f"{where} closed the connection in the TLS handshake; is it a TLS port? If so, {_CERTIFICATE_HINT}"
    )


_CERTIFICATE_HINT: Final = "it may want a client certificate, or not trust the one given"


def closed_early(where: str, *, tls: bool) -> ConnectError:
    """Return the error for a broker that closed the connection instead of answering CONNECT."""
    hint = _CERTIFICATE_HINT if tls else "if this is its TLS port, use pulsar+ssl://"
    return ConnectError(f"{where} closed the connection during the handshake; {hint}")


def _certificate_fault(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _HOSTNAME_MISMATCH:
        return (
            f"{error.verify_message}; connect to a host that the certificate names, or have it issued for "
            "this host too (tls_validate_hostname=False would skip the check)"
        )
    if error.verify_code in _EXPIRED:
        return f"{error.verify_message}; the operator of the broker has to renew it"
    return f"{error.verify_message}; give the certificate of its authority with tls_trust_certs_file_path"


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
