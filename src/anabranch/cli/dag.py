"""A topic's segments as a picture: the hash ring from left to right, the epochs from top to bottom.

A box opens in the epoch that made the segment and closes in the one that sealed it, so what lies below a box
are its children. Pure: the admin API's JSON in, styled text out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SLOTS = 65536
CELL_MIN = 5
"""Columns below which a box cannot show its id."""

Span = tuple[str, str]
"""A piece of a line and the name of its style; the empty name is plain text."""


@dataclass(frozen=True, slots=True)
class Node:
    """One segment as the picture needs it; numbers nobody knows are None."""

    id: int
    start: int
    end: int
    active: bool
    parents: tuple[int, ...]
    children: tuple[int, ...]
    created_epoch: int
    sealed_epoch: int
    buckets: int
    msg_rate_in: float | None = None
    backlog: int | None = None
    size_bytes: int | None = None
    owner: str | None = None

    @property
    def range_text(self) -> str:
        return f"{self.start:04x}-{self.end:04x}"

    def alive(self, epoch: int) -> bool:
        """Whether the segment took messages in this epoch."""
        return self.created_epoch <= epoch and (self.active or epoch < self.sealed_epoch)


def nodes_of(metadata: Mapping[str, Any], stats: Mapping[str, Any] | None = None) -> list[Node]:
    """The segments of a topic's metadata, by id, with what its stats add."""
    more = (stats or {}).get("segments", {})
    nodes = []
    for id_, segment in metadata["segments"].items():
        figures = more.get(str(id_), {})
        nodes.append(
            Node(
                id=int(segment["segmentId"]),
                start=segment["hashRange"]["start"],
                end=segment["hashRange"]["end"],
                active=segment["state"] == "ACTIVE",
                parents=tuple(segment["parentIds"]),
                children=tuple(segment["childIds"]),
                created_epoch=segment["createdAtEpoch"],
                sealed_epoch=segment["sealedAtEpoch"],
                buckets=len(segment.get("entryBucketSplits") or ()) + 1,
                msg_rate_in=figures.get("msgRateIn"),
                backlog=figures.get("backlogMessages"),
                size_bytes=figures.get("storageSize"),
                owner=figures.get("ownerBroker"),
            )
        )
    return sorted(nodes, key=lambda node: node.id)


def draw(nodes: Sequence[Node], epoch: int, width: int) -> list[list[Span]] | None:
    """The picture in at most `width` columns; None when some box would be too narrow to read."""
    margin = len(str(epoch)) + 7
    columns = width - margin - 1
    if any(_right(node, columns) - _left(node, columns) < CELL_MIN for node in nodes):
        return None
    lines: list[list[Span]] = [[(" " * margin, ""), *_ruler(columns)]]
    for row in sorted({node.created_epoch for node in nodes}):
        alive = [node for node in nodes if node.alive(row)]
        label = f"epoch {row}".rjust(margin - 1) + " "
        cells = [
            (node, _open(node, columns) if node.created_epoch == row else _side(node, columns))
            for node in alive
        ]
        lines.append([(label, "dim"), *_line(cells, columns)])
    active = [node for node in nodes if node.active]
    lines.append(
        [("now".rjust(margin - 1) + " ", "dim"), *_line([(n, _close(n, columns)) for n in active], columns)]
    )
    return lines


def _left(node: Node, columns: int) -> int:
    return node.start * columns // SLOTS


def _right(node: Node, columns: int) -> int:
    return (node.end + 1) * columns // SLOTS


def _line(cells: Sequence[tuple[Node, str]], columns: int) -> list[Span]:
    spans: list[Span] = []
    at = 0
    for node, text in sorted(cells, key=lambda cell: cell[0].start):
        left = _left(node, columns)
        if left > at:
            spans.append((" " * (left - at), ""))
        spans.append((text, "green" if node.active else "dim"))
        at = _right(node, columns)
    return spans


def _open(node: Node, columns: int) -> str:
    inside = _right(node, columns) - _left(node, columns) - 2
    long = f" {node.id} · {node.range_text} "
    label = (
        long if len(long) <= inside else f" {node.id} " if len(str(node.id)) + 2 <= inside else str(node.id)
    )
    return "┌" + label[:inside].center(inside, "─") + "┐"


def _side(node: Node, columns: int) -> str:
    return "│" + " " * (_right(node, columns) - _left(node, columns) - 2) + "│"


def _close(node: Node, columns: int) -> str:
    return "└" + "─" * (_right(node, columns) - _left(node, columns) - 2) + "┘"


def _ruler(columns: int) -> list[Span]:
    marks = [0, SLOTS // 4, SLOTS // 2, 3 * SLOTS // 4] if columns >= 40 else [0]
    text = ""
    for mark in marks:
        text = text.ljust(mark * columns // SLOTS) + f"{mark:04x}"
    return [(text.ljust(columns - 4) + "ffff", "dim")]


def table(nodes: Sequence[Node]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the list below the picture; columns that tell nothing are left out."""
    columns: list[tuple[str, list[str]]] = [
        ("id", [str(node.id) for node in nodes]),
        ("range", [node.range_text for node in nodes]),
        ("state", ["active" if node.active else "sealed" for node in nodes]),
        ("from", [_ids(node.parents) for node in nodes]),
        ("to", [_ids(node.children) for node in nodes]),
        ("buckets", [str(node.buckets) for node in nodes]),
    ]
    if any(node.msg_rate_in is not None for node in nodes):
        columns.append(("msg/s", [_number(node.msg_rate_in) for node in nodes]))
    if any(node.backlog is not None for node in nodes):
        columns.append(("backlog", [_number(node.backlog) for node in nodes]))
    if any(node.size_bytes is not None for node in nodes):
        columns.append(("stored", [_size(node.size_bytes) for node in nodes]))
    if len({node.owner for node in nodes}) > 1:
        columns.append(("broker", _addresses([node.owner for node in nodes])))
    return [head for head, _ in columns], [list(row) for row in zip(*(c for _, c in columns), strict=True)]


def _ids(ids: Sequence[int]) -> str:
    """Ids in ascending order; three or more in a row by the first and the last of them."""
    runs: list[list[int]] = []
    for id_ in sorted(ids):
        if runs and id_ == runs[-1][-1] + 1:
            runs[-1].append(id_)
        else:
            runs.append([id_])
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(texts) or "-"


def _addresses(urls: Sequence[str | None]) -> list[str]:
    """Who serves each segment, in few letters: the host is left out where all have the same."""
    hosts = {url.rpartition(":")[0] for url in urls if url is not None}
    shared = next(iter(hosts)) if len(hosts) == 1 else "pulsar://"
    return ["nobody" if url is None else url.removeprefix(shared) for url in urls]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _size(value: int | None) -> str:
    if value is None:
        return "-"
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
