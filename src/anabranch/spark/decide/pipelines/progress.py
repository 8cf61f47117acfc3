"""The progress of a pipeline: rows done, rate, waiting rows and remaining time. Pure.

Example: 30,000 rows after 10 s, with 60,000 waiting, in step 2, is shown as "30,000 rows, 3,000 rows/s,
60,000 waiting, about 20 s left, step 2".
"""

from __future__ import annotations

from typing import NamedTuple


class PipelineProgress(NamedTuple):
    """A moment of a running pipeline."""

    rows: int
    """Rows done in this run."""
    seconds: float
    """Since the run began."""
    waiting: int | None = None
    """Rows that are still to do, or None if their number is unknown."""
    step: str = ""
    """The current step, for human readers."""

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
