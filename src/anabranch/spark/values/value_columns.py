"""Builds the columns of decoded values: the value, and the bytes of rows that could not be decoded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.errors import CorruptDataError
from anabranch.spark.columns import Numbers
from anabranch.spark.options.values import CORRUPT, BadRows
from anabranch.spark.values.decoder import ValueDecoder

log = logging.getLogger("anabranch.spark")


class BadValueError(CorruptDataError):
    """A message's value does not fit the schema with which a Spark query decodes it."""

    def __init__(self, text: str, topic: str = "") -> None:
        super().__init__(text)
        self.topic = topic


class ValueColumns:
    """Builds the columns of one batch after the other, and applies the policy for bad rows."""

    def __init__(self, decoder: ValueDecoder, policy: BadRows, topic: str) -> None:
        self._decoder = decoder
        self._policy = policy
        self._topic = topic

    def of(
        self, values: Any, versions: Sequence[bytes], of_row: Numbers, place: Callable[[int], str]
    ) -> dict[str, Any]:
        """Return the columns by name; `place` describes a row in error texts.

        Raises BadValueError for the first bad row if that is the policy.
        """
        column, bad = self._decoder.decode(values, versions, of_row)
        if bad:
            self._report(bad, place)
        return {"value": column, CORRUPT: _only(values, bad)}

    def _report(self, bad: dict[int, str], place: Callable[[int], str]) -> None:
        first = min(bad)
        text = f"the value at {place(first)} cannot be decoded: {bad[first]}"
        if self._policy == "fail":
            raise BadValueError(f"{text}. Set badRows=null or badRows=column to continue", self._topic)
        log.warning(
            "%s; bad values that became null, because badRows is %s: %d", text, self._policy, len(bad)
        )


def _only(values: Any, rows: dict[int, str]) -> Any:
    """Return the values of these rows, and null for all others."""
    if not rows:
        return pa.nulls(len(values), pa.binary())
    kept = np.zeros(len(values), np.bool_)
    kept[list(rows)] = True
    return values.take(pa.array(np.arange(len(values)), mask=~kept))
