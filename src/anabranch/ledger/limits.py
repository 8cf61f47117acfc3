"""Sizes and ages that a store's operator chooses. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import InvalidConfigurationError

LEDGER_BYTES_MAX = 2**30
"""The upper limit of `ledger_bytes_max`: offsets are 32-bit numbers, and the last entry may exceed the
limit."""

WORTHWHILE_BYTES = 64 * 1024
"""A store on a full disk makes a checkpoint if that frees this many bytes of the journal."""


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """Sizes and ages at which a storage writes, rolls over or drops data."""

    cache_bytes: int = 64 * 2**20
    journal_bytes_max: int = 256 * 2**20
    """The storage writes a new catalog when the journal files together reach this size."""
    ledger_bytes_max: int = 128 * 2**20
    ledger_age_max_s: float = 86_400.0
    """A ledger ends when it is full or this old, because a trim drops only whole ledgers."""
    behind_bytes: int = 4 * 2**20
    """The storage collects this many committed bytes before it writes the ledger files."""
    reserve_bytes: int = 0
    """The storage refuses entries while the disk has less room than this."""

    def __post_init__(self) -> None:
        if not 0 < self.ledger_bytes_max <= LEDGER_BYTES_MAX:
            raise InvalidConfigurationError(f"ledger_bytes_max must lie in 1..{LEDGER_BYTES_MAX}")
