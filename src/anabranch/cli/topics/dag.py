"""A topic's segments as a picture: the hash ring from left to right, the epochs from top to bottom.

A box opens in the epoch that created the segment and closes in the epoch that sealed it, so the boxes below
it are its children. The partitions of a migrated topic share one box, because each has keys of the whole
ring. Pure: the JSON of the admin API in, styled text out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from anabranch.errors import counted
from anabranch.model.names import TopicName

SLOTS = 65536
CELL_MIN = 5
"""Columns below which a box cannot show its id."""

Span = tuple[str, str]
"""A piece of a line and the name of its style; the empty name is plain text."""


@dataclass(frozen=True, slots=True)
class Node:
    """One segment of the picture; unknown figures are None."""

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
    classic: TopicName | None = None
    """The classic topic or partition whose messages these are; None for a segment of its own."""

    @property
    def range_text(self) -> str:
        return f"{self.start:04x}-{self.end:04x}"

    @property
    def origin_text(self) -> str:
        """The parents, or the classic topic that the segment was."""
        if self.classic is None:
            return _ids(self.parents)
        return "classic" if self.classic.partition is None else f"partition {self.classic.partition}"

    def alive(self, epoch: int) -> bool:
        """Whether the segment was active in this epoch."""
        return self.created_epoch <= epoch and (self.active or epoch < self.sealed_epoch)


def nodes_of(metadata: Mapping[str, Any], stats: Mapping[str, Any] | None = None) -> list[Node]:
    """Return the segments of a topic by id, from its metadata and stats."""
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
                classic=TopicName.parse(name) if (name := segment.get("legacyTopicName")) else None,
            )
        )
    return sorted(nodes, key=lambda node: node.id)


class Box(NamedTuple):
    """A segment of the picture, or several that cover the same range at the same time."""

    node: Node
    """The segment, or the first of several."""
    ids: str
    about: str

    def top(self, columns: int) -> str:
        inside = _right(self.node, columns) - _left(self.node, columns) - 2
        long, short = f" {self.ids} · {self.about} ", f" {self.ids} "
        label = next((text for text in (long, short) if len(text) <= inside), self.ids)
        return "┌" + label[:inside].center(inside, "─") + "┐"


def _boxes(nodes: Sequence[Node]) -> list[Box]:
    stacks: dict[tuple[int, ...], list[Node]] = {}
    for node in nodes:
        place = (node.start, node.end, node.created_epoch, node.sealed_epoch, node.active)
        stacks.setdefault(place, []).append(node)
    return [Box(stack[0], _ids([node.id for node in stack]), _about(stack)) for stack in stacks.values()]


def _about(stack: Sequence[Node]) -> str:
    classic = stack[0].classic
    if classic is None:
        return stack[0].range_text
    return "classic topic" if classic.partition is None else counted(len(stack), "partition")


def draw(nodes: Sequence[Node], epoch: int, width: int) -> list[list[Span]] | None:
    """Return the picture in at most `width` columns; None when a box would be too narrow to read."""
    margin = len(str(epoch)) + 7
    columns = width - margin - 1
    if any(_right(node, columns) - _left(node, columns) < CELL_MIN for node in nodes):
        return None
    boxes = _boxes(nodes)
    lines: list[list[Span]] = [[(" " * margin, ""), *_ruler(columns)]]
    for row in sorted({node.created_epoch for node in nodes}):
        label = f"epoch {row}".rjust(margin - 1) + " "
        cells = [
            (box.node, box.top(columns) if box.node.created_epoch == row else _side(box.node, columns))
            for box in boxes
            if box.node.alive(row)
        ]
        lines.append([(label, "dim"), *_line(cells, columns)])
    closed = [(node, _close(node, columns)) for node in nodes if node.active]
    return [*lines, [("now".rjust(margin - 1) + " ", "dim"), *_line(closed, columns)]]


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
    """Return head and rows of the list below the picture, without columns of unknown figures."""
    columns = {head: list(map(text, nodes)) for head, text in _COLUMNS.items()}
    for head, (figure, text) in _FIGURES.items():
        known = list(map(figure, nodes))
        if known.count(None) < len(known):
            columns[head] = list(map(text, known))
    owners = [node.owner for node in nodes]
    if len(set(owners)) > 1:
        columns["broker"] = _addresses(owners)
    return list(columns), list(map(list, zip(*columns.values(), strict=True)))


def _ids(ids: Sequence[int]) -> str:
    """Return ids in ascending order; three or more in a row as first and last."""
    runs: list[list[int]] = []
    for id_ in sorted(ids):
        if runs and id_ == runs[-1][-1] + 1:
            runs[-1].append(id_)
        else:
            runs.append([id_])
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(texts) or "-"


def _addresses(urls: Sequence[str | None]) -> list[str]:
    """Return the address of each owner, without the host if all owners share it."""
    hosts = {url.rpartition(":")[0] for url in urls if url is not None}
    shared = next(iter(hosts)) if len(hosts) == 1 else "pulsar://"
    return ["none" if url is None else url.removeprefix(shared) for url in urls]


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


_COLUMNS: Mapping[str, Callable[[Node], str]] = {
    "id": lambda node: str(node.id),
    "range": lambda node: node.range_text,
    "state": lambda node: "active" if node.active else "sealed",
    "from": lambda node: node.origin_text,
    "to": lambda node: _ids(node.children),
    "buckets": lambda node: str(node.buckets),
}
_FIGURES: Mapping[str, tuple[Callable[[Node], Any], Callable[[Any], str]]] = {
    "msg/s": (lambda node: node.msg_rate_in, _number),
    "backlog": (lambda node: node.backlog, _number),
    "stored": (lambda node: node.size_bytes, _size),
}
