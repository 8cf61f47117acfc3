"""Proof of roles: credentials in, the caller out.

Each method is a small module; `AuthenticationMethods` finds the method that a client names. Reasons of
refusals are for the audit log (`gate`), never for the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from anabranch.rights.callers import Caller
from anabranch.security.attempts import Attempts
from anabranch.security.methods import tokens
from anabranch.security.refusals import RefusedCredentialsError
from anabranch.transport.certificates import PeerCertificate


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """The credentials that a client shows, and its address."""

    method: str
    credentials: bytes
    address: str
    certificate: PeerCertificate | None = None


NO_METHODS: Final = ("", "none")


class TokenVerifier(Protocol):
    """Proves the role of a token, or raises RefusedCredentialsError."""

    async def prove(self, token: str) -> Caller: ...


class Authenticator(Protocol):
    """One method of authentication."""

    async def authenticate(self, shown: Shown) -> Caller:
        """Return the caller that the credentials prove; raises RefusedCredentialsError."""


class TokenAuthentication:
    """The method `token`: the first verifier that accepts a token decides."""

    def __init__(self, verifiers: Sequence[TokenVerifier]) -> None:
        self._verifiers = verifiers

    async def authenticate(self, shown: Shown) -> Caller:
        text = tokens.text_of(shown.credentials)
        refusals = []
        for verifier in self._verifiers:
            try:
                return await verifier.prove(text)
            except RefusedCredentialsError as error:
                refusals.append(error)
        raise RefusedCredentialsError(
            "; ".join(refused.reason for refused in refusals),
            was_checked=all(refused.was_checked for refused in refusals),
        )


class AuthenticationMethods:
    """All configured methods by their names on the wire."""

    def __init__(
        self, methods: Mapping[str, Authenticator], attempts: Attempts, anonymous_role: str = ""
    ) -> None:
        self.methods = methods
        self.attempts = attempts
        self._anonymous = anonymous_role

    async def authenticate(self, shown: Shown) -> Caller:
        """Return the caller that shows these credentials; raises RefusedCredentialsError with the reason."""
        found = self.methods.get(shown.method)
        if found is not None:
            return await found.authenticate(shown)
        if self._anonymous:
            # As in Pulsar, a client whose method is not configured gets the anonymous role, too.
            return Caller(self._anonymous, method="anonymous")
        if shown.method in NO_METHODS:
            raise RefusedCredentialsError("the client showed no credentials")
        raise RefusedCredentialsError(f"the method {shown.method[:50]!r} is not configured")
