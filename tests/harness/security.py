"""Credentials of tests, and the settings of brokers that accept them."""

from __future__ import annotations

import base64
from typing import Any

import jwt

from anabranch.security.audit import AuditEvent

SECRET_KEY = b"a secret of thirty-two bytes....".ljust(64, b".")
SECURE = {
    "authentication": True,
    "token_secret_key": f"data:;base64,{base64.b64encode(SECRET_KEY).decode()}",
}
"""Settings of a broker that accepts the tokens of `token_for`."""


def token_for(role: str, *, algorithm: str = "HS256", key: Any = SECRET_KEY, **claims: Any) -> str:
    """Return a signed token; `claims` add to the role and replace it."""
    return jwt.encode({"sub": role, **claims}, key, algorithm=algorithm)


class KeptAudit:
    """An audit log that a test reads."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def write(self, event: AuditEvent) -> None:
        self.events.append(event)

    async def close(self) -> None:
        """Return at once, because no event waits."""

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if event.outcome == "refused"]
