"""Damage that recovery or a check found in a store, one value per damaged place. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One damaged place of a store."""

    file: str
    what: str
    """A sentence that says which bytes are damaged, and from which other bytes they were rebuilt."""
    lost_entries: int = 0
    """The number of entries that no file holds any more; 0 if everything was rebuilt."""
    log: str = ""
    """The name of the log, if the damage affects only one log."""

    def __str__(self) -> str:
        where = f"{self.file}, {self.log}" if self.log else self.file
        lost = f"; lost entries: {self.lost_entries}" if self.lost_entries else ""
        return f"{where}: {self.what}{lost}"


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The result of checking a whole store."""

    store_id: int
    """The identity of the store, chosen when it was created."""
    logs: int
    entries: int
    findings: tuple[Finding, ...]

    @property
    def lost_entries(self) -> int:
        return sum(finding.lost_entries for finding in self.findings)
