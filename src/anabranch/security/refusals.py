"""The refusal of credentials: one fixed text for the client, the reason for the audit log."""

from __future__ import annotations

from anabranch.errors import AuthenticationError


class RefusedCredentialsError(AuthenticationError):
    """The broker refused credentials; its text says nothing, and `reason` is for the audit log alone."""

    def __init__(self, reason: str) -> None:
        super().__init__("authentication failed")
        self.reason = reason
