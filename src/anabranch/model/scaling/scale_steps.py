"""The steps of auto-scaling, and the measures that all of them use.

Example: with the default policy, 25,000 incoming messages/s are a fill of 2.5 by `msg_rate_in`. A cooldown of
60 s that began at second 1,000 has 40 s left at second 1,020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.model.scaling.observed import METRICS, SegmentRates
from anabranch.model.scaling.policy import AutoScalePolicy


@dataclass(frozen=True, slots=True)
class Split:
    """Cut a segment; points are the first slots of the children after the first."""

    segment: int
    points: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Join a run of neighbours, named by range."""

    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rebucket:
    """Give a segment new bucket boundaries."""

    segment: int
    splits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the layout as it is."""


Action = Split | Merge | Rebucket | Keep

Cap = Literal["max_segments", "max_dag_depth"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one kind of step: its actions, or why there are none."""

    actions: tuple[Action, ...] = ()
    reason: str = ""
    against: tuple[str, ...] = ()
    wait_s: float | None = None
    capped: frozenset[Cap] = frozenset()


def fill_of(rates: SegmentRates | None, policy: AutoScalePolicy) -> tuple[float, str]:
    """Return the highest share of a split threshold that a segment reaches, and its metric."""
    if rates is None:
        return 0.0, METRICS[0]
    fills = [(getattr(rates, name) / getattr(policy, f"split_{name}_threshold"), name) for name in METRICS]
    return max(fills, key=lambda item: item[0])


def time_left_s(since_s: float | None, length_s: float, now_s: float) -> float:
    """Return the seconds until a period that began at `since_s` ends; 0 if it ended or never began."""
    return 0.0 if since_s is None else max(0.0, since_s + length_s - now_s)
