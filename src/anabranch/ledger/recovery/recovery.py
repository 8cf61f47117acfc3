"""Recovers a store: reads catalog and bounds, checks journal and ledger files, and replays the journal.

Recovery reads the whole journal before it cuts or deletes any file; until then it rewrites only copies of
catalog and bounds that are damaged, missing or outdated. So a recovery that is interrupted or refuses to
continue has destroyed nothing, and can be started again. Damage in one place is repaired from another copy of
the same bytes. Entries that no file holds any more keep their places in the log, but cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from anabranch.errors import CorruptDataError
from anabranch.ledger.disks.disk import Disk
from anabranch.ledger.findings import Finding
from anabranch.ledger.format.catalog import Bounds, Catalog
from anabranch.ledger.format.salvage import DamagedEntry, mend
from anabranch.ledger.journal.journal_reading import (
    FOLDER,
    JournalPart,
    JournalReader,
    journal_file,
    journal_numbers,
)
from anabranch.ledger.ledger_files import WriteBehind
from anabranch.ledger.ledgers import FOLDER as LEDGERS
from anabranch.ledger.recovery.ledger_recovery import JournalFacts, LedgerRecovery
from anabranch.ledger.recovery.rebuilding import rebuild_catalog
from anabranch.ledger.recovery.replaying import Recovered, Replay
from anabranch.ledger.recovery.store_files import Loaded, StoreFiles
from anabranch.ledger.stored_log import StoredLog

_FLUSH_BYTES = 16 * 1024 * 1024

LEDGERS_SKIPPED = 2**20
"""The number of ledger ids to skip when no file says which ones were handed out."""

INDEXES_SKIPPED = 2**20
"""The number of indexes to skip in each log when the journal lost entries, because readers may know them."""


class Recovery:
    """One recovery of one data directory."""

    def __init__(
        self,
        disk: Disk,
        behind: WriteBehind,
        make_log: Callable[[int, str], StoredLog],
        *,
        rebuild: bool = False,
    ) -> None:
        self._disk = disk
        self._may_rebuild = rebuild
        self._behind = behind
        self._make_log = make_log
        self._files = StoreFiles(disk)
        self._sizes: dict[str, int] = {}
        self._findings: list[Finding] = []
        self._commits_lost = self._rebuilt = False
        self._unbegun: list[str] = []

    async def run(self, now_ms: int) -> Recovered:
        """Recover every log. Raises CorruptDataError, with no file changed, if both catalogs are lost."""
        self._sizes = await self._disk.sizes()
        bounds = await self._files.bounds.load(self._sizes)
        catalogs = await self._files.catalog.load(self._sizes)
        catalog = catalogs.newest
        # Ids that follow the clock are unused even if the directory is empty or a restored backup.
        ids_from = now_ms // 1000
        if catalog is None and self._is_new(bounds.newest, catalogs):
            return await self._found(now_ms, max(ids_from, 1))
        if catalog is None:
            catalog = await self._rebuild(now_ms if bounds.newest is None else bounds.newest.salt)
        ledgers = LedgerRecovery(self._disk, self._sizes)
        known = self._bounds_of(bounds, catalog, ledgers)
        await self._renew_copies(bounds, known, catalogs, catalog)
        state = await self._recover(catalog, known, ledgers)
        state.next_ledger = max(state.next_ledger, ids_from)
        return state

    async def _recover(self, catalog: Catalog, known: Bounds, ledgers: LedgerRecovery) -> Recovered:
        facts = JournalFacts({kept.id: kept.size_bytes for log in catalog.logs for kept in log.ledgers})
        parts, damaged = await self._check_journals(catalog, known, facts)
        state = Recovered(
            catalog.salt,
            catalog.serial,
            max([catalog.journal, known.journal + 1, *(part.number + 1 for part in parts)]),
            catalog.next_commit,
            catalog.next_log,
            max(known.next_ledger, catalog.next_ledger, facts.next_ledger, ledgers.next_ledger),
            known,
            {part.number: part.size for part in parts},
            {record.id: self._make_log(record.id, record.name) for record in catalog.logs},
        )
        await ledgers.restore(catalog, state.logs, facts)
        state.rebuilt = self._rebuilt
        replay = Replay(state, self._make_log, await ledgers.spares(catalog, facts))
        copies = await ledgers.copies(damaged)
        # All files have been read. From here on recovery cuts and deletes, and may be interrupted and
        # restarted.
        await ledgers.clear_away()
        old = [number for number in journal_numbers(self._sizes) if number < catalog.journal]
        await self._disk.delete([journal_file(number) for number in old])
        await self._replay(replay, parts, copies)
        await self._close_journal(parts)
        # The last entries wait in memory, as before the crash, until the storage writes them to ledger files.
        self._behind.drop(replay.dropped)
        await self._behind.delete_dropped()
        await ledgers.delete_strays(state.logs.values())
        state.findings = [*self._findings, *ledgers.findings, *replay.findings]
        return state

    def _is_new(self, bounds: Bounds | None, catalogs: Loaded[Catalog]) -> bool:
        """Return whether there was no store here.

        Its first process may have died before it wrote the catalog.
        """
        begun = bounds is not None and bounds.journal > 0
        files = [file for file in self._sizes if file.startswith((f"{FOLDER}/", f"{LEDGERS}/"))]
        return not (begun or files or catalogs.findings)

    async def _found(self, salt: int, next_ledger: int) -> Recovered:
        """Create a store in an empty data directory."""
        fresh = Bounds(salt, 1, next_ledger, 0)
        await self._files.bounds.save(fresh)
        await self._files.catalog.save(Catalog(salt, 1, 1, 1, 1, next_ledger, []))
        return Recovered(salt, 1, 1, 1, 1, next_ledger, fresh)

    async def _rebuild(self, salt: int) -> Catalog:
        """Rebuild the catalog as far as other files allow. Only a repair may continue with the result."""
        if not self._may_rebuild:
            raise CorruptDataError(
                "no copy of the catalog of the store can be read; restore the store from a backup, "
                "or rebuild its catalog with `anabranch store repair`, which loses subscriptions"
            )
        self._rebuilt = True
        what = "it is rebuilt from the other files; subscriptions and seals before the journal are lost"
        self._findings.append(Finding("catalog", f"no copy can be read; {what}"))
        return await rebuild_catalog(self._disk, self._sizes, salt)

    def _bounds_of(self, bounds: Loaded[Bounds], catalog: Catalog, ledgers: LedgerRecovery) -> Bounds:
        """Return the bounds of the store, or a safe guess if both copies are lost."""
        if bounds.newest is not None and bounds.newest.salt == catalog.salt:
            return bounds.newest
        next_ledger = max(catalog.next_ledger, ledgers.next_ledger) + LEDGERS_SKIPPED
        self._findings.append(
            Finding("bounds", f"no copy can be read; new ledgers begin at {next_ledger}, which is unused")
        )
        return Bounds(catalog.salt, 1, next_ledger, max(journal_numbers(self._sizes), default=0))

    async def _renew_copies(
        self, bounds: Loaded[Bounds], known: Bounds, catalogs: Loaded[Catalog], catalog: Catalog
    ) -> None:
        """Rewrite damaged, missing or outdated copies."""
        self._findings += bounds.findings + catalogs.findings
        if known.journal or catalog.serial > 1:
            # A new store may have been killed while it was being created.
            for file in bounds.missing + catalogs.missing:
                self._findings.append(Finding(file, "the file is missing; the other copy is used"))
        if not bounds.current or known != bounds.newest:
            await self._files.bounds.save(known)
        if not catalogs.current:
            await self._files.catalog.save(catalog)

    async def _check_journals(
        self, catalog: Catalog, bounds: Bounds, facts: JournalFacts
    ) -> tuple[list[JournalPart], list[DamagedEntry]]:
        """Return the readable part of each journal file. Only the newest file may have a torn tail."""
        numbers = [number for number in journal_numbers(self._sizes) if number >= catalog.journal]
        newest = max([bounds.journal, *numbers])
        for number in range(catalog.journal, bounds.journal + 1):
            if number not in numbers:
                self._lose(Finding(journal_file(number), "the file is missing, with all its commits"))
        parts: list[JournalPart] = []
        damaged: list[DamagedEntry] = []
        next_commit = catalog.next_commit
        for number in numbers:
            size = self._sizes[journal_file(number)]
            reader = JournalReader(self._disk, catalog.salt, JournalPart(number, size, number == newest))
            async for commit in reader.commits(next_commit):
                facts.note(commit.contents)
                if commit.damage:
                    damaged += mend(commit, {}).damaged
            next_commit = reader.next_commit
            self._findings += reader.findings
            self._commits_lost |= reader.commits_lost
            if not reader.end:
                if number > bounds.journal:
                    # Its writer died during the first commit. The next commit starts the file over.
                    self._unbegun.append(journal_file(number))
                    continue
                self._lose(Finding(journal_file(number), "the file is empty; all its commits are lost"))
            parts.append(JournalPart(number, reader.end, newest=False))
        return parts, damaged

    def _lose(self, finding: Finding) -> None:
        self._commits_lost = True
        self._findings.append(finding)

    async def _replay(
        self, replay: Replay, parts: list[JournalPart], copies: Mapping[tuple[int, int], bytes]
    ) -> None:
        state = replay.state
        for part in parts:
            reader = JournalReader(self._disk, state.salt, part)
            async for commit in reader.commits(state.next_commit):
                replay.apply(commit, copies, journal_file(part.number))
                if self._behind.waiting_bytes >= _FLUSH_BYTES:
                    await self._behind.flush_if_room()
            state.next_commit = max(state.next_commit, reader.next_commit)
        self._commits_lost |= replay.finish()
        if self._commits_lost:
            replay.skip_lost(INDEXES_SKIPPED)

    async def _close_journal(self, parts: list[JournalPart]) -> None:
        """Cut off a torn tail and sync the rest, because the writer may have died before its sync."""
        sizes = {journal_file(part.number): part.size for part in parts[-1:]}
        sizes |= dict.fromkeys(self._unbegun, 0)
        for file, size in sizes.items():
            if size < self._sizes[file]:
                await self._disk.truncate(file, size)
            await self._disk.sync([file])
