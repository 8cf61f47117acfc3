"""Entries that compaction made smaller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anabranch.protocol.entry.columns import Columns


def spread_rows(content: Columns, count: int) -> Columns:
    """Return columns with a row for each message that the entry was stored with, compacted ones included."""
    rows: dict[int, int] = {index: row for row, index in enumerate(content.batch_indexes)}
    places = [rows.get(index) for index in range(count)]

    def spread(column: list[Any], nothing: Any) -> list[Any]:
        return [nothing if place is None else column[place] for place in places]

    whole = replace(
        content,
        count=count,
        values=spread(content.values, None),
        batch_indexes=list(range(count)),
        event_times=content.event_times and spread(content.event_times, 0),
        properties=content.properties and spread(content.properties, {}),
    )
    whole.keys = spread(content.keys, None)
    whole.sequence_ids = spread(content.sequence_ids, 0)
    return whole
