"""Recovers a store: reads the catalog, checks the journal, and replays it.

Recovery checks the whole journal before it changes a file, so that damaged files stay as they are for repair.
It trusts ledger files up to the size that the catalog recorded as synced, and writes all later entries again
from the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from anabranch.errors import CorruptDataError
from anabranch.ledger.cursors import replay
from anabranch.ledger.disk import Disk
from anabranch.ledger.format.catalog import Catalog, LedgerRecord, decode_catalog, encode_catalog
from anabranch.ledger.format.commits import (
    COMMIT_HEAD_BYTES,
    Change,
    CommitHead,
    CursorChanged,
    CursorCreated,
    CursorDeleted,
    LogCreated,
    LogDeleted,
    LogInherited,
    LogSealed,
    LogTrimmed,
    commit_follows,
    decode_commit_body,
    decode_commit_head,
    is_whole,
    pieces_of,
)
from anabranch.ledger.format.records import ROW_BYTES, Rows, checksum, rows_from_records, seed
from anabranch.ledger.journal import FOLDER as JOURNALS
from anabranch.ledger.journal import journal_file
from anabranch.ledger.ledger_files import WriteBehind
from anabranch.ledger.ledgers import FOLDER as LEDGERS
from anabranch.ledger.ledgers import Ledger
from anabranch.ledger.stored_log import StoredLog
from anabranch.model.acks import AckSet

CATALOG = "catalog"

_WINDOW_BYTES = 8 * 1024 * 1024
_FLUSH_BYTES = 16 * 1024 * 1024
_AT_ONCE = 64


@dataclass
class Recovered:
    """The recovered state of a store."""

    salt: int
    next_journal: int
    next_commit: int
    next_log: int
    next_ledger: int
    journals: dict[int, int] = field(default_factory=dict)
    """Journal files newer than the catalog, and their lengths."""
    logs: dict[int, StoredLog] = field(default_factory=dict)


class Recovery:
    """One recovery of one data directory."""

    def __init__(self, disk: Disk, behind: WriteBehind, make_log: Callable[[int, str], StoredLog]) -> None:
        self._disk = disk
        self._behind = behind
        self._make_log = make_log
        self._sizes: dict[str, int] = {}
        self._state = Recovered(0, 1, 1, 1, 1)
        self._dropped: list[Ledger] = []
        self._strays: list[str] = []

    async def run(self, new_salt: int) -> Recovered:
        """Recover every log; raises CorruptDataError, with no file changed, if durable bytes are damaged."""
        self._sizes = await self._disk.sizes()
        if CATALOG not in self._sizes:
            return await self._found(new_salt)
        # The writer of the catalog may have died before the name was durable.
        await self._disk.sync([CATALOG])
        catalog = decode_catalog(await self._disk.read(CATALOG, 0, self._sizes[CATALOG]))
        state = self._state = Recovered(
            catalog.salt, catalog.journal, catalog.next_commit, catalog.next_log, catalog.next_ledger
        )
        state.journals = await self._check_journals(catalog)
        await self._restore(catalog)
        await self._clear_away(catalog)
        await self._replay(catalog.next_commit)
        await self._close_journal()
        await self._behind.flush_if_room()
        await self._behind.drop(self._dropped)
        kept = self._ledger_files()
        await self._disk.delete([file for file in self._strays if file not in kept])
        return state

    async def _found(self, salt: int) -> Recovered:
        """Begin an empty data directory."""
        for file in sorted(self._sizes):
            if file.startswith((f"{JOURNALS}/", f"{LEDGERS}/")):
                raise CorruptDataError(
                    f"the data directory has {file} but no {CATALOG}; restore the {CATALOG} from a copy"
                )
        self._state.salt = salt
        await self._disk.replace(CATALOG, encode_catalog(Catalog(salt, 1, 1, 1, 1, [])))
        return self._state

    async def _check_journals(self, catalog: Catalog) -> dict[int, int]:
        """Length of the valid part of each journal file; only the last file may have a torn tail."""
        numbers = [number for number in _journal_numbers(self._sizes) if number >= catalog.journal]
        if numbers and numbers != list(range(catalog.journal, numbers[-1] + 1)):
            raise CorruptDataError(
                f"journal files are missing: there are {numbers}, not {catalog.journal} on"
            )
        ends: dict[int, int] = {}
        next_commit = catalog.next_commit
        for number in numbers:
            file = journal_file(number)
            size, end = self._sizes[file], 0
            async for head, _ in self._commits(number, size, next_commit):
                end = head.end
                next_commit += 1
            if end < size and (number != numbers[-1] or await self._commit_behind(number, end, size)):
                raise CorruptDataError(
                    f"{file} is damaged from byte {end} on, and later commits were durable; "
                    f"nothing was changed, restore the file from a copy"
                )
            ends[number] = end
        return ends

    async def _commit_behind(self, number: int, start: int, size: int) -> bool:
        rest = await self._disk.read(journal_file(number), start, size - start)
        return commit_follows(seed(self._state.salt, number), rest, 1, start)

    async def _commits(
        self, number: int, size: int, next_commit: int
    ) -> AsyncIterator[tuple[CommitHead, bytes]]:
        """The commits in the first `size` bytes of a journal file, up to the first that is not whole."""
        owner = seed(self._state.salt, number)
        file = journal_file(number)
        window = b""
        start = at = 0
        while True:
            if len(window) - at < COMMIT_HEAD_BYTES:
                window = window[at:] + await self._disk.read(file, start + len(window), _WINDOW_BYTES)
                start, at = start + at, 0
            head = decode_commit_head(owner, window, at, start + at)
            if head is None or head.number != next_commit or head.end > size:
                return
            missing = head.end - start - len(window)
            if missing > 0:
                more = await self._disk.read(file, start + len(window), max(missing, _WINDOW_BYTES))
                window = window[at:] + more
                start, at = start + at, 0
            at += COMMIT_HEAD_BYTES
            body = window[at : at + head.length]
            if not is_whole(head, body):
                return
            yield head, body
            at += head.length
            next_commit += 1

    async def _restore(self, catalog: Catalog) -> None:
        found: list[tuple[str, Ledger, LedgerRecord]] = []
        for record in catalog.logs:
            log = self._state.logs[record.id] = self._make_log(record.id, record.name)
            for ledger, kept in zip(log.restore(record), record.ledgers, strict=True):
                found.append((record.name, ledger, kept))
        # Many files at once, because a process that serves other stores is slow to get back to each read.
        for first in range(0, len(found), _AT_ONCE):
            await asyncio.gather(*(self._restore_rows(*each) for each in found[first : first + _AT_ONCE]))
        for log in self._state.logs.values():
            if log.extent.ledgers:
                log.extent.advance()

    async def _restore_rows(self, log: str, ledger: Ledger, kept: LedgerRecord) -> None:
        ledger.rows = await self._load_rows(log, ledger, kept)
        ledger.rows_checksum = kept.rows_checksum
        ledger.flushed = kept.entries

    async def _load_rows(self, log: str, ledger: Ledger, kept: LedgerRecord) -> Rows:
        """The synced rows of a ledger, from its index or, if the index is damaged, from its records."""
        if ledger.index_file in self._sizes:
            encoded = await self._disk.read(ledger.index_file, 0, kept.entries * ROW_BYTES)
            if len(encoded) == kept.entries * ROW_BYTES and checksum(encoded) == kept.rows_checksum:
                return Rows.decode(encoded)
        if ledger.data_file in self._sizes:
            data = await self._disk.read(ledger.data_file, 0, kept.size_bytes)
            rows = rows_from_records(data, kept.entries, kept.first_index, kept.base_ms)
            if rows is not None and checksum(encoded := rows.encode()) == kept.rows_checksum:
                await self._disk.replace(ledger.index_file, encoded)
                self._sizes[ledger.index_file] = len(encoded)
                return rows
        # Other ledgers stay readable. The journal may show that this ledger was trimmed after the catalog.
        ledger.damage = f"{log}: ledger {ledger.id} cannot be read, its files are missing or damaged"
        return Rows.filled(kept.entries, kept.size_bytes, kept.messages, kept.elapsed_ms)

    async def _clear_away(self, catalog: Catalog) -> None:
        """Cut or extend each file to its size in the catalog; the journal fills most other files again."""
        wanted = self._ledger_files()
        longer: list[str] = []
        for file in sorted(self._sizes):
            size = self._sizes[file]
            if file in wanted:
                if size > wanted[file]:
                    longer.append(file)
                elif size < wanted[file]:
                    # The lost entries stay damaged; entries from the journal still get their offsets.
                    await self._disk.append([(file, [bytes(wanted[file] - size)])])
            elif file.startswith(f"{LEDGERS}/"):
                self._strays.append(file)
        # No sync is needed: recovery ignores bytes beyond these sizes until the next checkpoint.
        longer += [file for file in self._strays if self._sizes[file]]
        for first in range(0, len(longer), _AT_ONCE):
            some = longer[first : first + _AT_ONCE]
            await asyncio.gather(*(self._disk.truncate(file, wanted.get(file, 0)) for file in some))
        numbers = _journal_numbers(self._sizes)
        await self._disk.delete([journal_file(n) for n in numbers if n < catalog.journal])

    def _ledger_files(self) -> dict[str, int]:
        """The files of all ledgers known by now, with their sizes."""
        found: dict[str, int] = {}
        for log in self._state.logs.values():
            for ledger in log.extent.ledgers:
                found[ledger.data_file] = ledger.size_bytes
                found[ledger.index_file] = ledger.entries * ROW_BYTES
        return found

    async def _replay(self, next_commit: int) -> None:
        state = self._state
        state.next_commit = next_commit
        for number in sorted(state.journals):
            async for head, body in self._commits(number, state.journals[number], state.next_commit):
                contents, payload = decode_commit_body(head, body)
                for change in contents.changes:
                    self._apply(change)
                at = 0
                for group in contents.groups:
                    middle = at + group.entries * ROW_BYTES
                    end = middle + group.size_bytes
                    state.next_ledger = max(state.next_ledger, group.ledger + 1)
                    # The log may have been deleted, before the catalog was written or in this journal.
                    if group.log in state.logs:
                        rows, records = bytes(payload[at:middle]), bytes(payload[middle:end])
                        state.logs[group.log].replay_group(group, rows, records)
                    at = end
                state.next_commit = head.number + 1
                if self._behind.waiting_bytes >= _FLUSH_BYTES:
                    await self._behind.flush_if_room()

    def _apply(self, change: Change) -> None:
        """Apply one change; the catalog may contain it already."""
        state = self._state
        if isinstance(change, LogCreated):
            state.next_log = max(state.next_log, change.log + 1)
            if change.log not in state.logs:
                state.logs[change.log] = self._make_log(change.log, change.name)
            return
        log = state.logs.get(change.log)
        if log is None:
            return
        match change:
            case LogDeleted():
                self._dropped += log.drop_all()
                del state.logs[change.log]
            case LogSealed():
                log.sealed = True
            case LogInherited(pieces=pieces):
                log.inherited = pieces_of(pieces)
            case LogTrimmed(ordinal=ordinal):
                self._dropped += log.drop_below(ordinal)
            case CursorCreated(cursor=name, ordinal=ordinal, properties=properties):
                log.cursors.restore(name, AckSet(ordinal), properties)
            case CursorChanged(cursor=name, steps=steps):
                if (cursor := log.cursors.get(name)) is not None:
                    replay(cursor.acks, steps)
            case CursorDeleted(cursor=name):
                log.cursors.remove(name)

    async def _close_journal(self) -> None:
        """Cut a torn tail off, and sync the rest, because its writer may have died before the sync."""
        state = self._state
        if not state.journals:
            return
        last = max(state.journals)
        file = journal_file(last)
        if state.journals[last] < self._sizes[file]:
            await self._disk.truncate(file, state.journals[last])
        await self._disk.sync([file])
        state.next_journal = last + 1


def _journal_numbers(sizes: dict[str, int]) -> list[int]:
    names = [file.removeprefix(f"{JOURNALS}/") for file in sizes if file.startswith(f"{JOURNALS}/")]
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())
