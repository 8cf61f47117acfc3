"""The port between the formats of values and the columns that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Getter = Callable[[Any], Any]
"""Takes a decoded record and returns one of its fields; None for a field without a value."""

Path = tuple[str, ...]
"""A place in a schema: the names of the fields that lead to it."""


class RowFormat(Protocol):
    """Decodes the values of one schema; the records are of a type of its own."""

    def rows(self, values: Sequence[bytes]) -> list[Any]:
        """Return one record per value; raises any error when a value is bad."""

    def getters(self, kind: Any, path: Path) -> Sequence[Getter]:
        """Return a getter for each field of the Arrow struct type at a place in the schema."""

    def leaves(self, kind: Any, values: list[Any]) -> Any:
        """Return an Arrow array of fields that are neither structs, lists nor maps."""
