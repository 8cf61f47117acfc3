"""The refusal of credentials: one fixed text for the client, the reason for the audit log."""

from __future__ import annotations

from anabranch.errors import AuthenticationError


class RefusedCredentialsError(AuthenticationError):
    """The broker refused credentials; the text gives no reason, and `reason` is for the audit log only."""

    def __init__(self, reason: str, *, was_checked: bool = True) -> None:
        """`was_checked` is False if the credentials were not checked, so this is not an attempt."""
        super().__init__("authentication failed")
        self.reason = reason
        self.was_checked = was_checked
