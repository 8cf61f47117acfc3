"""Credentials of tests, and the settings of brokers that accept them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, TypeVar

import jwt

from anabranch.errors import CredentialsUnavailableError
from anabranch.security.audit import AuditEvent
from anabranch.security.outside import Outside

T = TypeVar("T")

SECRET_KEY = b"a secret of thirty-two bytes....".ljust(64, b".")
SECURE = {
    "authentication": True,
    "token_secret_key": f"data:;base64,{base64.b64encode(SECRET_KEY).decode()}",
}
"""Settings of a broker that accepts the tokens of `token_for`."""


def token_for(role: str, *, algorithm: str = "HS256", key: Any = SECRET_KEY, **claims: Any) -> str:
    """Return a signed token; `claims` add to the role and replace it."""
    return jwt.encode({"sub": role, **claims}, key, algorithm=algorithm)


async def at_once(work: Callable[[], T]) -> T:
    """Do the work of a thread in the event loop."""
    return work()


async def fetch_nothing(url: str) -> bytes:
    raise CredentialsUnavailableError(f"no test serves {url}")


OUTSIDE = Outside(fetch_nothing, at_once, lambda size: b"r" * size)
"""The machine, for gates on virtual time."""


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
