"""The gate of a broker: every connection and HTTP request proves its role here.

The gate notes refusals in the audit log and tells a client nothing but that it was refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.rights.callers import ANYONE, Caller, is_role
from anabranch.rights.proxies import fault_of_proxy
from anabranch.security.audit import AuditEvent, AuditLog, NoAudit
from anabranch.security.authentication import AuthenticationMethods
from anabranch.security.refusals import RefusedCredentialsError
from anabranch.transport.certificates import PeerCertificate


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """The credentials that a client shows, and its address."""

    method: str
    credentials: bytes
    address: str
    certificate: PeerCertificate | None = None


class Original(NamedTuple):
    """The client for which a proxy speaks."""

    role: str = ""
    method: str = ""
    credentials: bytes = b""


NO_ORIGINAL = Original()


class Gate:
    """Lets callers in that prove a role, or every client if there is no authentication."""

    def __init__(
        self,
        authentication: AuthenticationMethods | None = None,
        audit: AuditLog | None = None,
        *,
        proxies: Collection[str] = (),
        check_original: bool = False,
        note_successes: bool = False,
    ) -> None:
        self.authentication = authentication
        self.audit = audit or NoAudit()
        self._proxies = proxies
        self._check_original = check_original
        self._note_successes = note_successes

    @property
    def is_open(self) -> bool:
        """Whether every client may pass without credentials."""
        return self.authentication is None

    async def admit(self, shown: Shown, action: str, original: Original = NO_ORIGINAL) -> Caller:
        """The caller behind the credentials; raises RefusedCredentialsError, after it noted the reason."""
        if self.authentication is None:
            return ANYONE
        try:
            caller = await self.authentication.authenticate(
                shown.method, shown.credentials, shown.certificate
            )
            caller = await self._with_original(caller, original)
            fault = fault_of_proxy(caller, self._proxies)
            if fault:
                raise RefusedCredentialsError(fault)
        except RefusedCredentialsError as error:
            self.refuse(shown, action, error.reason)
            raise
        if self._note_successes:
            self.audit.write(AuditEvent(action, "allowed", caller, shown.address))
        return caller

    async def renew(self, shown: Shown, action: str, caller: Caller) -> Caller:
        """The proof of new credentials of an open connection; raises RefusedCredentialsError.

        They must prove the role of its client: behind a proxy, the role whose credentials were checked.
        """
        proven = await self.admit(shown, action)
        role = caller.original if self._check_original and caller.original else caller.role
        if proven.role != role:
            reason = "the new credentials are of another role"
            self.refuse(shown, action, reason)
            raise RefusedCredentialsError(reason)
        return proven

    def refuse(self, shown: Shown, action: str, reason: str) -> None:
        """Note refused credentials in the audit log."""
        caller = Caller(method=shown.method or "none")
        self.audit.write(AuditEvent(action, "refused", caller, shown.address, reason=reason))

    async def _with_original(self, caller: Caller, original: Original) -> Caller:
        if not (original.role or original.credentials):
            return caller
        if not self._check_original:
            if not is_role(original.role):
                raise RefusedCredentialsError("the role for which the proxy speaks is not a valid role")
            return dataclasses.replace(caller, original=original.role)
        assert self.authentication is not None
        if not original.credentials:
            raise RefusedCredentialsError("the proxy did not pass on the credentials of its client")
        proven = await self.authentication.authenticate(original.method, original.credentials)
        if original.role and original.role != proven.role:
            raise RefusedCredentialsError("the proxy names another role than the credentials of its client")
        return dataclasses.replace(caller, original=proven.role, expires_s=proven.expires_s)
