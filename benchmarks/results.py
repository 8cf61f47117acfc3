"""The figures of a benchmark, and how they are shown and stored."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure and the figure of its peer; `peer` is None for an absolute goal.

    `series` holds intermediate figures; `met` says whether the goal is reached, None if that is not judged.
    """

    name: str
    unit: str
    ours: float
    peer_name: str = ""
    peer: float | None = None
    goal: str = ""
    series: Mapping[str, float] = field(default_factory=dict)
    met: bool | None = None

    @property
    def ratio(self) -> float | None:
        return None if not self.peer else self.ours / self.peer


def percentile_ms(times_s: Sequence[float], at: int) -> float:
    return statistics.quantiles(times_s, n=100, method="inclusive")[at - 1] * 1e3


def store(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = [{**msgspec.to_builtins(row), "ratio": row.ratio} for row in rows]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(body), indent=2) + b"\n")


def show(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Anabranch beside its peers, one run")
    for column in ("what", "ours", "peer", "peer's", "ratio", "goal"):
        table.add_column(column, justify="left" if column in ("what", "peer", "goal") else "right")
    for row in rows:
        peer = "" if row.peer is None else _figure(row.peer, row.unit)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        goal = f"{row.goal}: missed" if row.met is False else row.goal
        table.add_row(row.name, _figure(row.ours, row.unit), row.peer_name, peer, ratio, goal)
    console = Console(width=140)
    console.print(table)
    for row in rows:
        if row.series:
            figures = ", ".join(f"{at}: {_figure(value, row.unit)}" for at, value in row.series.items())
            console.print(f"{row.name}: {figures}")


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
