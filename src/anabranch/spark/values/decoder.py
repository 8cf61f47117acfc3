"""Decodes the values of a batch, each by the schema of its entry, and finds the bad ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from anabranch.spark.columns import Numbers
from anabranch.spark.values.arrow_columns import column_of, spread
from anabranch.spark.values.formats import RowFormat


class DecodedValues(NamedTuple):
    """A column, and the reason for each row that could not be decoded and is null."""

    column: Any
    bad: dict[int, str]


class ValueDecoder:
    """Decodes binary values into an Arrow column of one type."""

    def __init__(self, kind: Any, format_of: Callable[[bytes], RowFormat]) -> None:
        """`format_of` takes the schema version of an entry, empty without one; it raises any error."""
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
            # Formats are of other packages, whose errors have no common type.
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
