"""Applies the commits of the journal to the logs of a store. Does no I/O."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from anabranch.ledger.cursors import LogCursors, replay
from anabranch.ledger.findings import Finding
from anabranch.ledger.format.catalog import Bounds
from anabranch.ledger.format.commits import (
    PAYLOAD,
    Change,
    Commit,
    CursorChanged,
    CursorCreated,
    CursorDeleted,
    Group,
    LogCreated,
    LogDeleted,
    LogInherited,
    LogSealed,
    LogTrimmed,
    pieces_of,
)
from anabranch.ledger.format.records import ROW_BYTES
from anabranch.ledger.format.salvage import mend
from anabranch.ledger.ledgers import Ledger
from anabranch.ledger.recovery.spares import Spares
from anabranch.ledger.stored_log import StoredLog
from anabranch.model.acks import AckSet


@dataclass
class Recovered:
    """The recovered state of a store."""

    salt: int
    serial: int
    next_journal: int
    next_commit: int
    next_log: int
    next_ledger: int
    bounds: Bounds
    journals: dict[int, int] = field(default_factory=dict)
    """Journal files newer than the catalog, with their lengths."""
    logs: dict[int, StoredLog] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    rebuilt: bool = False
    """Whether the catalog was rebuilt. Then the journal changes cursors that the catalog does not know."""


class Replay:
    """The replay of all journal files of one store."""

    def __init__(self, state: Recovered, make_log: Callable[[int, str], StoredLog], spares: Spares) -> None:
        self.state = state
        self._make_log = make_log
        self._spares = spares
        self._lost_logs = {id_: name for id_, name in spares.logs() if id_ >= state.next_log}
        """Logs whose creation may be in a lost commit."""
        self.dropped: list[Ledger] = []
        """Ledgers that the journal trimmed or deleted."""
        self.findings: list[Finding] = []
        self._lost: list[tuple[Finding, int, int]] = []
        """Lost entries, each with its log and the last lost ordinal."""

    def apply(self, commit: Commit, copies: Mapping[tuple[int, int], bytes], file: str) -> None:
        """Apply one commit. `copies` holds whole records of entries that are damaged in the journal."""
        payload = commit.payload
        if commit.damage:
            payload = self._mend(commit, copies, file)
        for change in commit.contents.changes:
            self._change(change)
        at = 0
        for group in commit.contents.groups:
            middle = at + group.entries * ROW_BYTES
            end = middle + group.size_bytes
            self._add(group, payload[at:middle], payload[middle:end], file)
            at = end

    def _mend(self, commit: Commit, copies: Mapping[tuple[int, int], bytes], file: str) -> bytes:
        place = f"commit {commit.head.number} at byte {commit.head.offset}"
        for part in commit.damage:
            if part != PAYLOAD:
                self.findings.append(Finding(file, f"{place}: its {part} is damaged; the other copy is used"))
        if PAYLOAD not in commit.damage:
            return commit.payload
        mended = mend(commit, copies)
        for damaged in mended.damaged:
            log = self.state.logs.get(damaged.log)
            what = f"{place}: entry {damaged.ledger}:{damaged.number} is damaged"
            finding = Finding(file, what, 1, log.name if log is not None else "")
            self._lost.append((finding, damaged.log, damaged.ordinal))
        if not mended.damaged:
            self.findings.append(Finding(file, f"{place}: rows or records are damaged; they were rebuilt"))
        return mended.payload

    def _add(self, group: Group, rows: bytes, records: bytes, file: str) -> None:
        if group.log in self._lost_logs:
            self._create(group.log, self._lost_logs[group.log])
        log = self.state.logs.get(group.log)
        if log is None:
            # The log was deleted, either before the catalog was written or in this journal.
            return
        self._add_spares(log, group.first_ordinal + group.start.entries)
        lost = log.replay_group(group, rows, records)
        if lost:
            what = f"entries before {group.ledger}:{group.start.entries} are missing"
            before = group.first_ordinal + group.start.entries - 1
            self._lost.append((Finding(file, what, lost, log.name), log.id, before))

    def _create(self, id_: int, name: str) -> None:
        self.state.next_log = max(self.state.next_log, id_ + 1)
        self._lost_logs.pop(id_, None)
        if id_ not in self.state.logs:
            self.state.logs[id_] = self._make_log(id_, name)

    def _add_spares(self, log: StoredLog, ordinal: int) -> bool:
        """Add entries below `ordinal` that only the ledger files hold. Returns whether there were any."""
        added = False
        while self._spares and log.extent.next_ordinal < ordinal:
            found = self._spares.following(log)
            if found is None:
                break
            group = found.group
            log.replay_group(group, found.rows, b"".join(found.records))
            place = f"{group.ledger}:{group.start.entries}"
            what = f"{group.entries} entries from {place} on are missing; the ledger files hold them"
            self.findings.append(Finding("journal", what, log=log.name))
            added = True
        return added

    def _change(self, change: Change) -> None:
        """Apply one change, which the catalog may already contain."""
        state = self.state
        if isinstance(change, LogCreated):
            self._create(change.log, change.name)
            return
        log = state.logs.get(change.log)
        if log is None:
            return
        match change:
            case LogDeleted():
                self.dropped += log.drop_all()
                del state.logs[change.log]
            case LogSealed():
                log.sealed = True
            case LogInherited(pieces=pieces):
                log.inherited = pieces_of(pieces)
            case LogTrimmed(ordinal=ordinal):
                self.dropped += log.drop_below(ordinal)
            case _:
                if state.rebuilt and isinstance(change, CursorChanged) and change.cursor not in log.cursors:
                    log.cursors.restore(change.cursor, AckSet(log.extent.first_ordinal), {})
                _change_cursor(log.cursors, change)

    def finish(self) -> bool:
        """Add entries that follow the end of the journal. Returns whether there were any."""
        for finding, id_, ordinal in self._lost:
            lost_log = self.state.logs.get(id_)
            dropped = lost_log is None or ordinal < lost_log.extent.first_ordinal
            self.findings.append(replace(finding, lost_entries=0) if dropped else finding)
        for id_, name in list(self._lost_logs.items()):
            self._create(id_, name)
        added = False
        for log in self.state.logs.values():
            if not log.sealed:
                added |= self._add_spares(log, sys.maxsize)
        return added

    def skip_lost(self, indexes: int) -> None:
        """Make sure that no new message gets the index or the acknowledgement of a lost one."""
        for log in self.state.logs.values():
            if not log.sealed:
                log.extent.index_floor = max(log.extent.next_index, log.extent.index_floor) + indexes
            for name, cursor in list(log.cursors.items()):
                if cursor.acks.top > log.extent.next_ordinal:
                    acks = _cut(cursor.acks, log.extent.next_ordinal)
                    log.cursors.restore(name, acks, cursor.properties, cursor.note)


def _change_cursor(cursors: LogCursors, change: CursorCreated | CursorChanged | CursorDeleted) -> None:
    match change:
        case CursorCreated(cursor=name, ordinal=ordinal, properties=properties):
            cursors.restore(name, AckSet(ordinal), properties)
        case CursorChanged(cursor=name, steps=steps):
            if (cursor := cursors.get(name)) is not None:
                replay(cursor, steps)
        case CursorDeleted(cursor=name):
            cursors.remove(name)


def _cut(acks: AckSet, end: int) -> AckSet:
    """Return the acknowledged entries below `end`."""
    cut = AckSet(min(acks.mark, end))
    cut.acknowledge([ordinal for ordinal in range(cut.mark, end) if ordinal in acks])
    return cut
