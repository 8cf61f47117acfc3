"""Entries that the journal lost but ledger files still hold. Does no I/O.

Only committed entries reach the ledger files, and each record says where it belongs. So whole records that
continue a log are as trustworthy as those in the journal.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ledger.format.commits import Group
from anabranch.ledger.format.index_head import IndexHead
from anabranch.ledger.format.records import (
    HEAD_BYTES,
    OFFSET_MAX,
    Rows,
    RowStart,
    checksum,
    seed,
    whole_record,
)
from anabranch.ledger.ledgers import Closed
from anabranch.ledger.stored_log import StoredLog


class Spares:
    """Bytes of ledger files that neither the catalog nor the journal mentions."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], bytes] = {}
        self._ledgers: dict[tuple[int, int], tuple[IndexHead, bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._parts or self._ledgers)

    def add_part(self, ledger: int, offset: int, data: bytes) -> None:
        """Add bytes of the data file of a known ledger."""
        self._parts[ledger, offset] = data

    def add_ledger(self, head: IndexHead, data: bytes) -> None:
        """Add the data file of a ledger that neither the catalog nor the journal knows."""
        self._ledgers[head.log, head.first_ordinal] = (head, data)

    def logs(self) -> Sequence[tuple[int, str]]:
        """Return the ids and names of the logs of unknown ledgers."""
        return sorted({(head.log, head.name) for head, _ in self._ledgers.values()})

    def following(self, log: StoredLog) -> Closed | None:
        """Return the entries that continue the log from its end, or None if no file holds them."""
        ledger = log.extent.ledgers[-1] if log.extent.ledgers else None
        if ledger is not None:
            data = self._parts.pop((ledger.id, ledger.size_bytes), b"")
            head = IndexHead(
                log.id, log.name, ledger.id, ledger.first_ordinal, ledger.first_index, ledger.base_ms
            )
            if (found := _group(head, ledger.end, data)) is not None:
                return found
        next_ledger = self._ledgers.pop((log.id, log.extent.next_ordinal), None)
        if next_ledger is None:
            return None
        head, data = next_ledger
        if head.name != log.name or (ledger is not None and head.ledger <= ledger.id):
            return None
        return _group(head, RowStart(), data)


def _group(head: IndexHead, start: RowStart, data: bytes) -> Closed | None:
    """Return the whole records at the start of `data`, or None if there are none."""
    owner = seed(head.log, head.ledger)
    rows = Rows()
    at, elapsed_ms, last_ms = 0, start.elapsed_ms, head.base_ms
    while record := whole_record(owner, start.entries + len(rows), data, at):
        at += HEAD_BYTES + len(record.data)
        last_ms = record.timestamp_ms
        elapsed_ms = min(max(elapsed_ms, last_ms - head.base_ms), OFFSET_MAX)
        rows.ends.append(start.size_bytes + at)
        rows.indexes.append(record.index + record.count - head.first_index)
        rows.times.append(elapsed_ms)
    if not rows:
        return None
    encoded = rows.encode()
    group = Group(
        head.log,
        head.ledger,
        start,
        len(rows),
        at,
        checksum(encoded),
        head.first_ordinal,
        head.first_index,
        head.base_ms,
        last_ms,
        {},
    )
    return Closed(group, encoded, [data[:at]])
