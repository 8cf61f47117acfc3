"""Decodes JSON values. Fields are matched by name; unknown fields are ignored and missing fields are null."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from anabranch.spark.values.formats import Getter, Path

_LEAVES: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    # Base64, as in Spark's own JSON reader.
    (pa.types.is_binary, bytes),
    (pa.types.is_decimal, Decimal),
    # A number is the encoding of Avro's logical types: milliseconds or days since 1970.
    (pa.types.is_timestamp, datetime.datetime | int),
    (pa.types.is_date, datetime.date | int),
)


class JsonRows:
    """Decodes JSON into records with attributes f0, f1, ... for the fields of the Arrow type."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.json.Decoder(_python_type(kind)).decode

    def rows(self, values: Sequence[bytes]) -> list[Any]:
        return list(map(self._decode, values))

    def getters(self, kind: Any, path: Path) -> Sequence[Getter]:
        return [attrgetter(f"f{number}") for number in range(kind.num_fields)]

    def leaves(self, kind: Any, values: list[Any]) -> Any:
        if pa.types.is_timestamp(kind):
            values = [value * 1000 if type(value) is int else value for value in values]
        return pa.array(values, kind)


def _python_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        names = {f"f{number}": field.name for number, field in enumerate(kind)}
        fields = [(f"f{number}", _python_type(field.type), None) for number, field in enumerate(kind)]
        # Records have no cycles, so the garbage collector need not follow them.
        return msgspec.defstruct("Record", fields, rename=names, gc=False) | None
    if pa.types.is_map(kind):
        return dict[str, _python_type(kind.item_type)] | None  # type: ignore[misc]
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type)] | None  # type: ignore[misc]
    return next(python for fits, python in _LEAVES if fits(kind)) | None
