"""The picture and the table of a scalable topic on the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anabranch.cli.topics import dag
from anabranch.cli.topics.topic_text import subscription_line
from anabranch.errors import counted
from anabranch.model.names import TopicName


def print_picture(name: TopicName, metadata: dict[str, Any], stats: dict[str, Any]) -> None:
    console = Console(highlight=False)
    nodes = dag.nodes_of(metadata, stats)
    active = sum(node.active for node in nodes)
    console.print(
        f"[bold]{name}[/]   epoch {metadata['epoch']}, {counted(active, 'active segment')}, "
        f"{len(nodes) - active} sealed"
    )
    picture = dag.draw(nodes, metadata["epoch"], min(console.width, 120))
    if picture is not None:
        console.print()
        for line in picture:
            console.print(Text.assemble(*line), no_wrap=True, crop=True)
    head, rows = dag.table(nodes)
    table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in table.columns:
        column.no_wrap = column.header not in ("from", "to")
    for column in table.columns[5:]:
        column.justify = "right"
    for node, row in zip(nodes, rows, strict=True):
        table.add_row(*row, style="" if node.active else "dim")
    console.print(table)
    for subscription, figures in stats.get("subscriptions", {}).items():
        console.print(subscription_line(subscription, figures))
    intent = metadata.get("intent")
    if intent:
        console.print(f"[yellow]under way:[/] {intent['kind']}, begun in term {intent['term']}")
