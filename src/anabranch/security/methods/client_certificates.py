"""The method `tls`: the common name of the client's verified certificate is its role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from anabranch.rights.callers import Caller, is_role
from anabranch.security.authentication import Shown
from anabranch.security.refusals import RefusedCredentialsError

METHOD: Final = "tls"


class CertificateAuthentication:
    """Takes the certificate that the TLS handshake has verified."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s

    async def authenticate(self, shown: Shown) -> Caller:
        certificate = shown.certificate
        if certificate is None:
            raise RefusedCredentialsError("the client showed no certificate")
        if not is_role(certificate.common_name):
            raise RefusedCredentialsError(f"the certificate has no role: {certificate.subject}")
        if certificate.expires_s <= self._now_s():
            raise RefusedCredentialsError("the certificate expired")
        return Caller(certificate.common_name, method=METHOD, expires_s=certificate.expires_s)
