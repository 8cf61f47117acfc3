"""The port between the formats of values and the Arrow columns that are made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Getter = Callable[[Any], Any]
"""Takes a decoded record and returns one of its fields; None for a field without a value."""

Path = tuple[str, ...]
"""A place in a schema: the names of the fields that lead to it."""


class RowFormat(Protocol):
    """Decodes the values of one schema; each format has its own type of records."""

    def rows(self, values: Sequence[bytes]) -> list[Any]:
        """Return one record per value; a bad value may raise any error."""

    def getters(self, kind: Any, path: Path) -> Sequence[Getter]:
        """Return a getter for each field of the Arrow struct type at a path in the schema."""

    def leaves(self, kind: Any, values: list[Any]) -> Any:
        """Return an Arrow array of fields that are neither structs, lists nor maps."""
