"""How both ends count an entry against the credit of its connection and producer."""

from __future__ import annotations

from typing import Final

ENTRY_CREDIT_BYTES: Final = 1024
"""Bytes that an entry counts beside its own, because a broker needs time for each entry."""
