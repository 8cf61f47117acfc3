"""The certificate that the other end of a TLS connection showed, as a small value.

The TLS handshake has verified it: a connection without a verified certificate has none here.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """A verified certificate of a client."""

    common_name: str
    """The CN of the subject; empty if the subject has none, or several."""
    subject: str
    """All attributes of the subject, for logs: `commonName=..., organizationName=...`."""
    expires_s: float
    """When the certificate expires, in seconds of the wall clock."""


class ExtraInfo(Protocol):
    """A transport or a pump."""

    def get_extra_info(self, name: str) -> Any: ...


def peer_certificate(connection: ExtraInfo) -> PeerCertificate | None:
    """Return the verified certificate of the other end; None if it showed none, or without TLS."""
    # Python gives the fields of a certificate only if the handshake verified it.
    found = connection.get_extra_info("peercert")
    if not found:
        return None
    attributes = [pair for part in found.get("subject", ()) for pair in part]
    names = [value for key, value in attributes if key == "commonName"]
    return PeerCertificate(
        names[0] if len(names) == 1 else "",
        ", ".join(f"{key}={value}" for key, value in attributes),
        float(ssl.cert_time_to_seconds(found["notAfter"])),
    )
