"""The audit log: one line of JSON for each refusal, changed right and admin call.

A line never holds credentials. JSON escapes all text of clients, so no client can forge a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from anabranch.clock import Clock
from anabranch.rights.callers import ANYONE, Caller

Outcome = Literal["allowed", "refused", "failed"]

TEXT_CHARACTERS_MAX: Final = 1000
"""Longer texts of clients are cut, so that a line stays readable."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One act of a caller, and what became of it."""

    action: str
    """A command or `METHOD path`, for instance `CONNECT`, `CommandProducer`, `PUT /admin/v2/tenants/acme`."""
    outcome: Outcome
    caller: Caller = ANYONE
    address: str = ""
    resource: str = ""
    reason: str = ""


class AuditLog(Protocol):
    """Takes events; never raises, and never waits for a disk."""

    def write(self, event: AuditEvent) -> None: ...

    async def close(self) -> None:
        """Write the events that wait."""


class NoAudit:
    """An audit log that forgets all events."""

    def write(self, event: AuditEvent) -> None:
        """Drop the event."""

    async def close(self) -> None:
        """Return at once, because no event waits."""


class AuditLines:
    """Turns events into lines."""

    def __init__(self, clock: Clock, worker: int) -> None:
        self._clock = clock
        self._worker = worker
        self._encode = msgspec.json.Encoder().encode

    def line_of(self, event: AuditEvent) -> bytes:
        """The line of an event, with the newline; empty fields are left out."""
        caller = event.caller
        texts = {
            "address": event.address,
            "role": caller.role,
            "original_role": caller.original,
            "method": caller.method,
            "action": event.action,
            "resource": event.resource,
            "outcome": event.outcome,
            "reason": event.reason,
        }
        shown = {name: _bounded(text) for name, text in texts.items() if text}
        time_s = self._clock.wall_ms() / 1000
        return self._encode({"time_s": time_s, "worker": self._worker, **shown}) + b"\n"


def _bounded(text: str) -> str:
    # A lone surrogate cannot be encoded.
    return text[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode()
