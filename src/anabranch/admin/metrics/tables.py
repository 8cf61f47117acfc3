"""Tables of figures: one row for each set of labels, one metric in each column; and their text in parts.

`prometheus_client` writes a sample in some ten microseconds, which is two seconds for 10,000 topics. So this
module writes the lines of tables itself, below headers that `prometheus_client` made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from prometheus_client import Metric

PART_BYTES: Final = 64 * 1024
"""Size of one part of the text; the event loop serves others between two parts."""

Encode = Callable[["Families"], bytes]
"""An encoder of `prometheus_client`."""


class Families(NamedTuple):
    """Families of samples, as a collector."""

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.families


class TextPart(NamedTuple):
    """Lines of one family and its header; the parts of a family follow each other."""

    header: bytes
    lines: bytes


class Column(NamedTuple):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge"]
    about: str


class Table:
    """The figures of several metrics that have the same labels."""

    def __init__(self, *columns: Column) -> None:
        self.columns = columns
        self.rows: dict[str, list[float | None]] = {}
        """Figures by the text of their labels; None is left out."""

    def add(self, labels: str, *figures: float | None) -> None:
        """Add figures to the row of these labels."""
        row = self.rows.get(labels)
        if row is None:
            self.rows[labels] = list(figures)
            return
        for at, figure in enumerate(figures):
            if figure is not None:
                row[at] = figure + (row[at] or 0)

    def parts(self, worker: str, encode: Encode) -> Iterator[TextPart]:
        """Yield the text of the table, each metric in one piece, with the label `worker` on each line."""
        for at, column in enumerate(self.columns):
            header = header_of(column, encode)
            prefix = f'{column.name}{{worker="{worker}",'
            lines: list[str] = []
            size = 0
            for labels, row in self.rows.items():
                if row[at] is not None:
                    lines.append(f"{prefix}{labels}}} {row[at]!r}\n")
                    size += len(lines[-1])
                    if size >= PART_BYTES:
                        yield TextPart(header, "".join(lines).encode())
                        lines, size = [], 0
            yield TextPart(header, "".join(lines).encode())


def header_of(column: Column, encode: Encode) -> bytes:
    empty = Metric(column.name.removesuffix("_total"), column.about, column.kind)
    return split_header(encode(Families([empty]))).header


def split_header(text: bytes) -> TextPart:
    """Return the encoded text of one family, without the mark at the end of an exposition."""
    lines = text.removesuffix(b"# EOF\n").splitlines(keepends=True)
    samples = next((at for at, line in enumerate(lines) if not line.startswith(b"#")), len(lines))
    return TextPart(b"".join(lines[:samples]), b"".join(lines[samples:]))


def label(name: str, value: object) -> str:
    """Return one label as text."""
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{text}"'
