"""Decodes the values of a batch into one Arrow column, each by the schema of its entry, and finds bad ones.

All values of a batch are decoded together. Only if that fails are they decoded one by one, to find the bad
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from anabranch.spark.columns import Numbers
from anabranch.spark.values.formats import Path, RowFormat


class DecodedValues(NamedTuple):
    """A column, and the reason for each row that is null because it could not be decoded."""

    column: Any
    bad: dict[int, str]


class ValueDecoder:
    """Decodes binary values into an Arrow column of one type."""

    def __init__(self, kind: Any, format_of: Callable[[bytes], RowFormat]) -> None:
        """`format_of` takes the schema version of an entry, empty if it has none, and may raise any error."""
        self._kind = kind
        self._format_of = format_of
        self._formats: dict[bytes, RowFormat] = {}

    def decode(self, values: Any, versions: Sequence[bytes], of_row: Numbers) -> DecodedValues:
        """Decode a binary column; `of_row` is the index of each row's version in `versions`."""
        distinct = np.unique(of_row).tolist()
        if len(distinct) == 1:
            return self._decode(values, versions[distinct[0]])
        parts, rows_of_parts, bad = [], [], {}
        for number in distinct:
            rows = np.flatnonzero(of_row == number)
            column, failed = self._decode(values.take(pa.array(rows)), versions[number])
            parts.append(column)
            rows_of_parts.append(rows)
            bad.update({int(rows[row]): reason for row, reason in failed.items()})
        places = np.empty(len(values), np.int64)
        places[np.concatenate(rows_of_parts)] = np.arange(len(values))
        return DecodedValues(pa.concat_arrays(parts).take(pa.array(places)), bad)

    def _decode(self, values: Any, version: bytes) -> DecodedValues:
        missing = np.asarray(values.is_null())
        present = values.drop_null().to_pylist() if missing.any() else values.to_pylist()
        bad: dict[int, str] = {}
        try:
            fmt = self._format(version)
        except Exception as error:
            # Formats come from other packages, whose errors have no common type.
            reason = f"its schema cannot be used: {error}"
            return DecodedValues(
                pa.nulls(len(values), self._kind), dict.fromkeys(np.flatnonzero(~missing).tolist(), reason)
            )
        try:
            column = column_of(self._kind, fmt.rows(present), fmt)
        except Exception:
            column, bad = self._one_by_one(present, fmt)
        if missing.any():
            places = np.flatnonzero(~missing)
            column, bad = spread(column, missing), {int(places[row]): why for row, why in bad.items()}
        return DecodedValues(column, bad)

    def _one_by_one(self, values: Sequence[bytes], fmt: RowFormat) -> DecodedValues:
        good, bad = [], {}
        for row, value in enumerate(values):
            try:
                records = fmt.rows([value])
                column_of(self._kind, records, fmt)
            except Exception as error:
                bad[row] = str(error) or type(error).__name__
            else:
                good += records
        missing = np.zeros(len(values), np.bool_)
        missing[list(bad)] = True
        return DecodedValues(spread(column_of(self._kind, good, fmt), missing), bad)

    def _format(self, version: bytes) -> RowFormat:
        if version not in self._formats:
            self._formats[version] = self._format_of(version)
        return self._formats[version]


def column_of(kind: Any, rows: list[Any], fmt: RowFormat, path: Path = ()) -> Any:
    """Return the rows as an array of the Arrow type, with None as null.

    Raises an error of Arrow, or TypeError, ValueError or OverflowError, if a row does not fit the type.
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
    """Return the elements of `array` in order, with a null inserted wherever `missing` is true."""
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
    """Return the offsets of lists or maps. The offset of a null one is null, as Arrow requires."""
    lengths = np.fromiter((0 if row is None else len(row) for row in rows), np.int64, len(rows))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    missing = np.fromiter(chain((row is None for row in rows), (False,)), np.bool_, len(rows) + 1)
    return pa.array(offsets, pa.int32(), mask=missing if missing.any() else None)
