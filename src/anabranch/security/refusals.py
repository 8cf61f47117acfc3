"""The refusal of credentials: one fixed text for the client, the reason for the audit log."""

from __future__ import annotations

from anabranch.errors import AuthenticationError


class RefusedCredentialsError(AuthenticationError):
    """The broker refused credentials; its text says nothing, and `reason` is for the audit log alone."""

    def __init__(self, reason: str, *, was_checked: bool = True) -> None:
        """`was_checked` is False if the credentials were not looked at, so they count as no attempt."""
        super().__init__("authentication failed")
        self.reason = reason
        self.was_checked = was_checked
