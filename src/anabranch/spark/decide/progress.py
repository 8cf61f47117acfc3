"""The progress of a pipeline: rows done, rate, rows that wait, remaining time. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.offsets import Cut, decode


class PipelineProgress(NamedTuple):
    """A moment of a running pipeline."""

    rows: int
    """Rows done in this run."""
    seconds: float
    """Since the run began."""
    waiting: int | None = None
    """Rows that are known and not done; None if unknown."""
    step: str = ""
    """The present step, for human readers."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        if self.waiting is None or self.rows_per_s <= 0:
            return None
        return self.waiting / self.rows_per_s

    def text(self) -> str:
        parts = [f"{self.rows:,} rows", f"{self.rows_per_s:,.0f} rows/s"]
        if self.waiting is not None:
            parts.append(f"{self.waiting:,} waiting")
        if self.remaining_s is not None:
            parts.append(f"about {self.remaining_s:,.0f} s left")
        return ", ".join([*parts, self.step] if self.step else parts)


def rows_between(start: Cut, end: Cut) -> int:
    """Return about how many messages lie between two cuts; sealed segments that only lie between count 0."""
    return sum(
        max(0, position - start.topics[name].positions.get(id_, 0))
        for name, cut in end.topics.items()
        if name in start.topics
        for id_, position in cut.positions.items()
    )


def waiting_rows(reached: str | None, newest: str | None) -> int | None:
    """Return about how many messages wait, from the two offsets in Spark's progress; None if unknown."""
    cuts = [_cut(text) for text in (reached, newest)]
    start, end = cuts
    return None if start is None or end is None else rows_between(start, end)


def _cut(text: str | None) -> Cut | None:
    try:
        found = decode(json.loads(text or "null"))
    except (ValueError, InvalidConfigurationError):
        return None
    return found if isinstance(found, Cut) else None
