"""The role for which a connection or an HTTP request speaks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

ROLE_CHARACTERS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """A role that was proven, and how."""

    role: str = ""
    """The role that showed credentials; empty without authentication."""
    original: str = ""
    """The role of the client for which `role`, a proxy, speaks; empty without a proxy."""
    method: str = "none"
    """The authentication method that proved `role`."""
    expires_s: float = math.inf
    """When the credentials expire, in seconds of the wall clock."""

    @property
    def principal(self) -> str:
        """The role that owns names and shows up in logs: that of the client, also behind a proxy."""
        return self.original or self.role


ANYONE = Caller()
"""The caller of a broker without authentication; it may do everything."""


def is_role(text: str) -> bool:
    """Return whether a text may be a role: not empty, not too long, and without control characters."""
    return 0 < len(text) <= ROLE_CHARACTERS_MAX and text.isprintable() and text == text.strip()
