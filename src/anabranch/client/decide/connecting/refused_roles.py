"""Which refusals of a client's role end a producer or consumer, and which are retried. Pure.

A missing right is final: asking again does not bring it back. Refused credentials are final for a call that
opens something. A producer or consumer that is open asks for fresh credentials for a while, because a token
may expire before its successor is in place.

Example: credentials are retried for 30 seconds and refused from 10 s on. A refusal at 25 s is retried, one at
40 s ends the producer. A missing right ends it at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import AuthenticationError, AuthorizationError


@dataclass
class RefusedCredentials:
    """The refusals in a row of one client's credentials."""

    since: float | None = None

    def accepted(self) -> None:
        """Note that a broker accepted credentials."""
        self.since = None

    def refused(self, now: float) -> None:
        """Note that a broker refused credentials, or that there are none."""
        if self.since is None:
            self.since = now

    def ends(self, error: BaseException, now: float, patience_s: float) -> bool:
        """Whether an error ends an open producer or consumer; credentials are retried for `patience_s`."""
        if not is_refused_role(error):
            return False
        if isinstance(error, AuthorizationError):
            return True
        self.refused(now)
        return self.since is not None and now - self.since >= patience_s


def is_refused_role(error: BaseException) -> bool:
    """Whether a broker refused the role, or its credentials; False if the issuer is only out of reach."""
    if isinstance(error, AuthenticationError):
        return not error.retryable
    return isinstance(error, AuthorizationError)
