"""Draws the weights of a topic: with Matplotlib as PNG or SVG, or as text in a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anabranch.errors import InvalidConfigurationError
from anabranch.model.ranges import HASH_SLOTS
from anabranch.spark.decide.pipelines.skew import RING_CELLS, SkewReport

SHADES = " .:-=+*#%@"
"""From no weight to the most."""

TEXT_ROWS = 16
TEXT_COLUMNS = 60
KEYS_SHOWN = 10


def text_plot(report: SkewReport) -> list[str]:
    """Draw the ring from top to bottom and time from left to right; a darker character is more weight.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        for line in pipelines.text_plot(pipelines.skew(spark, orders)):
            print(line)
    """
    times = report.times
    if not times:
        return []
    wide = -(-len(times) // TEXT_COLUMNS)
    columns = -(-len(times) // wide)
    tall = RING_CELLS // TEXT_ROWS
    sums = [[0] * columns for _ in range(TEXT_ROWS)]
    for (cell, start), weight in report.heat.items():
        sums[cell // tall][(start - times[0]) // report.interval_s // wide] += weight
    most = max(max(row) for row in sums)
    slots = HASH_SLOTS // TEXT_ROWS
    lines = []
    for number, row in enumerate(sums):
        shades = "".join(SHADES[_shade(weight, most)] for weight in row)
        total = sum(row)
        share = total / report.total if report.total else 0.0
        lines.append(f"{number * slots:04x}-{(number + 1) * slots - 1:04x} |{shades}| {share:6.1%}")
    ends = f"{_moment(times[0])} to {_moment(times[-1] + report.interval_s)}"
    lines.append(f"{'':10}{ends}, {wide * report.interval_s:,} s per column")
    return lines


def _shade(weight: int, most: int) -> int:
    """Return the darkness of a weight; even the smallest weight is visible."""
    last = len(SHADES) - 1
    return 0 if not weight else max(1, round(last * weight / most))


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def save_plot(report: SkewReport, file: str) -> None:
    """Write a picture; the extension of the file, .png or .svg, determines the format.

    Example:
        orders = pipelines.TopicPlace("orders", "pulsar://127.0.0.1:6650")
        pipelines.save_plot(pipelines.skew(spark, orders), "/data/orders.png")
    """
    check_plot(file)
    # The object interface needs no display and no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 10), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{report.topic}: {report.total:,} {report.unit} by key hash")
    over_time, slots, keys = figure.subplots(3, 1)
    _draw_heat(over_time, report)
    _draw_segments(slots, report)
    _draw_keys(keys, report)
    figure.savefig(file)


def check_plot(file: str) -> None:
    """Raise InvalidConfigurationError if a picture cannot be written; called before a topic is weighed."""
    if find_spec("matplotlib") is None:
        raise InvalidConfigurationError(
            "a picture needs Matplotlib; install it with `pip install 'anabranch[plot]'`"
        )
    if Path(file).suffix.lower() not in (".png", ".svg"):
        raise InvalidConfigurationError(f"{file}: the file name has to end in .png or .svg")
    if not Path(file).parent.is_dir():
        raise InvalidConfigurationError(f"{file}: there is no directory {Path(file).parent}")


def _draw_heat(axes: Any, report: SkewReport) -> None:
    times = report.times
    rows = [[report.heat.get((cell, start), 0) for start in times] for cell in range(RING_CELLS)]
    axes.set_title("weight of the ring over time")
    axes.set_ylabel("slot")
    if not times:
        return
    edges = [datetime.fromtimestamp(start, UTC) for start in [*times, times[-1] + report.interval_s]]
    cells = [cell * (HASH_SLOTS // RING_CELLS) for cell in range(RING_CELLS + 1)]
    mesh = axes.pcolormesh(edges, cells, rows, cmap="viridis")
    axes.figure.colorbar(mesh, ax=axes, label=f"{report.unit} per {report.interval_s:,} s")


def _draw_segments(axes: Any, report: SkewReport) -> None:
    width = HASH_SLOTS // RING_CELLS
    weights = [0] * RING_CELLS
    for (cell, _), weight in report.heat.items():
        weights[cell] += weight
    axes.set_title("weight of the ring; segments (solid) and suggested splits (dashed)")
    axes.set_xlabel("slot")
    axes.set_ylabel(report.unit)
    axes.bar([cell * width for cell in range(RING_CELLS)], weights, width=width, align="edge")
    for one in report.segments:
        axes.axvline(one.segment.range.start, color="black", linewidth=1)
        for point in one.points:
            axes.axvline(point, color="red", linewidth=1, linestyle="--")


def _draw_keys(axes: Any, report: SkewReport) -> None:
    shown = report.heavy_keys[:KEYS_SHOWN]
    axes.set_title("heaviest keys")
    axes.set_xlabel(report.unit)
    axes.barh([shown_key(one.key) for one in reversed(shown)], [one.weight for one in reversed(shown)])


def shown_key(key: bytes) -> str:
    """Return a key as text, or as hexadecimal digits if it is not printable text."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"
