"""The audit log: one line of JSON for each refusal, changed right and admin call.

A line never holds credentials. JSON escapes all text of clients, so no client can forge a line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from anabranch.aio import TaskRegistry
from anabranch.clock import Clock
from anabranch.errors import counted
from anabranch.rights.callers import ANYONE, Caller
from anabranch.transport.seldom import Seldom

_logger = logging.getLogger(__name__)

Outcome = Literal["allowed", "refused", "failed"]

WAITING_BYTES_MAX: Final = 4 * 2**20
GATHER_S: Final = 0.05
"""The lines of this period are written together."""
CLOSE_S: Final = 2.0

Append = Callable[[bytes], Awaitable[None]]
"""Writes whole lines; raises OSError if it cannot."""

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
    """An audit log that drops all events."""

    def write(self, event: AuditEvent) -> None:
        """Drop the event."""

    async def close(self) -> None:
        """Return at once, because no event waits."""


class BufferedAudit:
    """Keeps lines in memory until they are written.

    A full disk or a blocked pipe costs lines, which are counted, and never stops serving.
    """

    def __init__(self, lines: AuditRecords, append: Append) -> None:
        self._lines = lines
        self._append = append
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._lost = 0
        self._tasks = TaskRegistry()
        self._writing: asyncio.Task[None] | None = None
        self._log = Seldom(_logger)

    def write(self, event: AuditEvent) -> None:
        line = self._lines.line_of(event)
        if self._waiting_bytes + len(line) > WAITING_BYTES_MAX:
            self._lost += 1
            return
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write_soon())

    async def close(self) -> None:
        """Write the lines that wait, unless that takes too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._tasks.stop()
                await self._write_waiting()

    async def _write_soon(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            await self._write_waiting()

    async def _write_waiting(self) -> None:
        taken, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._lost:
            reason = f"{counted(self._lost, 'line')} lost"
            taken.append(self._lines.line_of(AuditEvent("audit", "failed", reason=reason)))
        lost, self._lost = self._lost, 0
        if not taken:
            return
        try:
            await self._append(b"".join(taken))
        except OSError as error:
            self._lost += lost + len(taken) - bool(lost)
            self._log.warning("the audit log cannot be written: %s", error)


class AuditRecords:
    """Turns events into lines."""

    def __init__(self, clock: Clock, worker: int) -> None:
        self._clock = clock
        self._worker = worker
        self._encode = msgspec.json.Encoder().encode

    def line_of(self, event: AuditEvent) -> bytes:
        """Return the line of an event, with the newline; empty fields are left out."""
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
