"""How both ends count an entry against the credit of its connection and producer."""

from __future__ import annotations

from typing import Final

ENTRY_CREDIT_BYTES: Final = 1024
"""Bytes charged for each entry in addition to its size, because a broker needs time for each entry."""
