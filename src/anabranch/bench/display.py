"""How a run is shown: a live table on a terminal, else a line for each interval, and a summary at the end."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from anabranch.bench.run import now
from anabranch.bench.tally import BenchTally, Interval, figures
from anabranch.errors import counted

COLUMNS = ("", "messages/s", "MB/s", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms", "messages")


class Display:
    """Shows the tallies of a run, by the name of what they count, while it lasts."""

    def __init__(self, interval_s: float, tallies: dict[str, BenchTally]) -> None:
        self._interval_s = interval_s
        self._tallies = tallies
        self._began = now()

    async def show(self) -> None:
        """Write to standard error once in each interval, until cancelled."""
        console = Console(stderr=True)
        if console.is_terminal:
            with Live(self._table(), console=console, auto_refresh=False, transient=True) as live:
                while True:
                    await asyncio.sleep(self._interval_s)
                    live.update(self._table(), refresh=True)
        while True:
            await asyncio.sleep(self._interval_s)
            for name, tally in self._tallies.items():
                line = line_of(tally.take(now()))
                print(f"{self._elapsed()}  {name}: {line}", file=sys.stderr, flush=True)

    def _table(self) -> Table:
        table = Table(*COLUMNS, title=self._elapsed(), title_justify="left")
        for column in table.columns[1:]:
            column.justify = "right"
        for name, tally in self._tallies.items():
            table.add_row(name, *cells(tally.take(now())), f"{tally.messages:,}")
        return table

    def _elapsed(self) -> str:
        return f"{now() - self._began:.0f} s"


def amount(number: float) -> str:
    """Return a number of milliseconds or megabytes, with more digits if it is small."""
    return f"{number:,.2f}" if number < 10 else f"{number:,.1f}"


def cells(interval: Interval) -> list[str]:
    """Return the rates and percentiles of an interval; empty cells if it has no latencies."""
    messages_s, bytes_s = interval.rates()
    times = interval.latencies.milliseconds()
    names = ("p50", "p95", "p99", "p99.9", "max")
    shown = [amount(times[name]) if interval.latencies.count else "" for name in names]
    return [f"{messages_s:,.0f}", amount(bytes_s / 1e6), *shown]


def line_of(interval: Interval) -> str:
    """Return the rates and percentiles of an interval in one line."""
    messages_s, bytes_s = interval.rates()
    line = f"{messages_s:,.0f} messages/s, {amount(bytes_s / 1e6)} MB/s"
    if not interval.latencies.count:
        return line
    times = interval.latencies.milliseconds()
    return f"{line}; " + ", ".join(f"{name} {amount(value)} ms" for name, value in times.items())


def summary_lines(done: str, tally: BenchTally) -> list[str]:
    """Return the summary of what one tally counted; `done` says what became of the messages."""
    whole = tally.whole()
    total = f"{whole.messages:,} message{'' if whole.messages == 1 else 's'}"
    lines = [
        f"{total} ({amount(whole.bytes / 1e6)} MB) {done} in {whole.seconds:.1f} s",
        f"  {line_of(whole)}",
    ]
    return lines + [
        f"  {counted(number, 'message')} failed: {error}" for error, number in tally.errors.items()
    ]


def summary_data(tally: BenchTally) -> dict[str, Any]:
    """Return the same for scripts."""
    return figures(tally.whole(), tally.errors)
