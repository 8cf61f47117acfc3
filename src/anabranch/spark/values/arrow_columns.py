"""From decoded records to one Arrow column: a list per field, then an array per list."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.spark.values.formats import Path, RowFormat


def column_of(kind: Any, rows: list[Any], fmt: RowFormat, path: Path = ()) -> Any:
    """Return the rows as an array of the Arrow type; None is null.

    Raises an error of Arrow, or TypeError, ValueError or OverflowError, when a row does not fit the type.
    """
    if pa.types.is_struct(kind):
        return _structs(kind, rows, fmt, path)
    if pa.types.is_map(kind):
        return _maps(kind, rows, fmt, path)
    if pa.types.is_list(kind):
        return _lists(kind, rows, fmt, path)
    return fmt.leaves(kind, rows)


def _structs(kind: Any, rows: list[Any], fmt: RowFormat, path: Path) -> Any:
    missing = np.fromiter((row is None for row in rows), np.bool_, len(rows))
    present = [row for row in rows if row is not None] if missing.any() else rows
    fields = list(kind)
    columns = [
        column_of(field.type, [getter(row) for row in present], fmt, (*path, field.name))
        for field, getter in zip(fields, fmt.getters(kind, path), strict=True)
    ]
    if columns:
        structs = pa.StructArray.from_arrays(columns, fields=fields)
    else:
        structs = pa.array([{}] * len(present), kind)
    return structs if len(present) == len(rows) else spread(structs, missing)


def spread(array: Any, missing: Any) -> Any:
    """Return an array with the elements of `array` in their order and null in each place that is missing."""
    places = np.cumsum(~missing) - 1
    return array.take(pa.array(places, pa.int64(), mask=missing))


def _lists(kind: Any, rows: list[Any], fmt: RowFormat, path: Path) -> Any:
    items = list(chain.from_iterable(row for row in rows if row is not None))
    return pa.ListArray.from_arrays(_offsets(rows), column_of(kind.value_type, items, fmt, path), type=kind)


def _maps(kind: Any, rows: list[Any], fmt: RowFormat, path: Path) -> Any:
    present = [row for row in rows if row is not None]
    keys = fmt.leaves(kind.key_type, list(chain.from_iterable(present)))
    items = list(chain.from_iterable(row.values() for row in present))
    values = column_of(kind.item_type, items, fmt, path)
    return pa.MapArray.from_arrays(_offsets(rows), keys, values, type=kind)


def _offsets(rows: list[Any]) -> Any:
    """Return the offsets of lists or maps; the offset of a null one is null, as Arrow wants it."""
    lengths = np.fromiter((0 if row is None else len(row) for row in rows), np.int64, len(rows))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    missing = np.fromiter(chain((row is None for row in rows), (False,)), np.bool_, len(rows) + 1)
    return pa.array(offsets, pa.int32(), mask=missing if missing.any() else None)
