"""The gate of a broker: every connection and HTTP request proves its role here.

The gate writes refusals to the audit log and tells a client only that it was refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Collection
from typing import Final, NamedTuple

from anabranch.errors import AuthenticationError
from anabranch.rights.callers import ANYONE, Caller, is_role
from anabranch.rights.proxies import fault_of_proxy
from anabranch.security.audit import AuditEvent, AuditLog, NoAudit
from anabranch.security.authentication import AuthenticationMethods, Shown
from anabranch.security.refusals import RefusedCredentialsError


class Original(NamedTuple):
    """The client for which a proxy speaks."""

    role: str = ""
    method: str = ""
    credentials: bytes = b""


NO_ORIGINAL = Original()

DELAY_S: Final = 1.0
DELAYED_MAX: Final = 200
"""Refusals that may wait; more are answered at once, so that waiting costs little memory."""


class Gate:
    """Admits callers that prove a role, or every client if authentication is off."""

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
        self._delayed = 0
        self._proxies = proxies
        self._check_original = check_original
        self._note_successes = note_successes

    @property
    def is_open(self) -> bool:
        """Whether every client may pass without credentials."""
        return self.authentication is None

    async def admit(self, shown: Shown, action: str, original: Original = NO_ORIGINAL) -> Caller:
        """Return the caller behind the credentials.

        Raise RefusedCredentialsError after writing the reason to the audit log.
        """
        if self.authentication is None:
            return ANYONE
        caller = await self._noted(self._prove(self.authentication, shown, original), shown, action)
        if self._note_successes:
            self.audit.write(AuditEvent(action, "allowed", caller, shown.address))
        return caller

    async def renew(self, shown: Shown, action: str, caller: Caller) -> Caller:
        """Return the caller of an open connection with the expiry of its new credentials; raises as `admit`.

        They must prove the role of its client: behind a proxy, the role whose credentials were checked.
        """
        if self.authentication is None:
            return caller
        return await self._noted(self._prove_again(self.authentication, shown, caller), shown, action)

    def refuse(self, shown: Shown, action: str, reason: str) -> None:
        """Note refused credentials in the audit log."""
        caller = Caller(method=shown.method or "none")
        self.audit.write(AuditEvent(action, "refused", caller, shown.address, reason=reason))

    async def _noted(self, proving: Awaitable[Caller], shown: Shown, action: str) -> Caller:
        try:
            return await proving
        except AuthenticationError as error:
            # Only the text of this class may reach a client.
            refused = error
            if not isinstance(refused, RefusedCredentialsError):
                refused = RefusedCredentialsError(str(error), was_checked=False)
            self.refuse(shown, action, refused.reason)
            await self._slow_down(shown.address, refused)
            raise refused from None

    async def _slow_down(self, address: str, error: RefusedCredentialsError) -> None:
        """Delay the refusal of an address that fails often; valid credentials are never delayed."""
        assert self.authentication is not None
        attempts = self.authentication.attempts
        if error.was_checked:
            attempts.fail(address)
        if attempts.is_exhausted(address) and self._delayed < DELAYED_MAX:
            self._delayed += 1
            try:
                await asyncio.sleep(DELAY_S)
            finally:
                self._delayed -= 1

    async def _prove_again(
        self, authentication: AuthenticationMethods, shown: Shown, caller: Caller
    ) -> Caller:
        proven = await authentication.authenticate(shown)
        role = caller.original if self._check_original and caller.original else caller.role
        if proven.role != role:
            raise RefusedCredentialsError("the new credentials are of another role")
        return dataclasses.replace(caller, expires_s=proven.expires_s)

    async def _prove(self, authentication: AuthenticationMethods, shown: Shown, original: Original) -> Caller:
        caller = await authentication.authenticate(shown)
        caller = await self._with_original(caller, original, shown.address)
        fault = fault_of_proxy(caller, self._proxies)
        if fault:
            raise RefusedCredentialsError(fault)
        return caller

    async def _with_original(self, caller: Caller, original: Original, address: str) -> Caller:
        if not (original.role or original.credentials):
            return caller
        if not self._check_original:
            if original.role and not is_role(original.role):
                raise RefusedCredentialsError("the role for which the proxy speaks is not a valid role")
            return dataclasses.replace(caller, original=original.role)
        assert self.authentication is not None
        if not original.credentials:
            raise RefusedCredentialsError("the proxy did not pass on the credentials of its client")
        proven = await self.authentication.authenticate(Shown(original.method, original.credentials, address))
        if original.role and original.role != proven.role:
            raise RefusedCredentialsError(
                "the proxy names a different role than the credentials of its client"
            )
        return dataclasses.replace(caller, original=proven.role, expires_s=proven.expires_s)
