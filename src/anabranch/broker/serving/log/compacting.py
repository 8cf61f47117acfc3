"""Compacts one log: copies the latest message of each key into a side log, and lets compacted readers use it.

A crash at any step loses nothing. The side log is named in the note of the compaction cursor before it is
made, because unnamed side logs are deleted. One change of the note, once all copies are durable, makes it
the current one; only then may the log drop the entries that were compacted, and the former side log goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from anabranch.broker.dispatch.compaction import (
    COMPACTION,
    CompactionNote,
    LatestKeys,
    decode_compaction,
    encode_compaction,
)
from anabranch.broker.dispatch.spilled import OldLedgers, SideRecord
from anabranch.broker.serving.context import LogUse, SideStorage, Spawn
from anabranch.broker.serving.side_logs.compacted_log import CompactedLog
from anabranch.broker.serving.side_logs.side_log import CopyBatch, SideLog
from anabranch.errors import AnabranchError, ConflictError
from anabranch.failpoints import Failpoints
from anabranch.ledger.cursors import DurableCursor
from anabranch.ledger.storage import Entry, SegmentLog
from anabranch.model.names import TopicName
from anabranch.model.side_logs import LOG, SUBSCRIPTION, side_log_name
from anabranch.protocol.compression import UNCOMPRESSED_BYTES_MAX

_log = logging.getLogger(__name__)

READ_ENTRIES = 1000
READ_BYTES = 2**20


class Compacting:
    """The compactions of one log, one at a time."""

    def __init__(
        self, name: TopicName, log: SegmentLog, view: CompactedLog, sides: SideStorage, points: Failpoints
    ) -> None:
        self.running = False
        self.error: str | None = None
        """Why the last compaction failed; None if none did."""
        self.succeeded_ms = self.failed_ms = self.took_ms = 0
        """When a compaction last succeeded and failed, and how long the last one took."""
        self.removed = 0
        """Messages that the last compaction left out."""
        self._name = name
        self._log = log
        self._view = view
        self._sides = sides
        self._points = points

    @property
    def status(self) -> str:
        """How Pulsar calls the state of the last compaction."""
        if self.running:
            return "RUNNING"
        if self.error is not None:
            return "ERROR"
        return "SUCCESS" if self._view.horizon else "NOT_RUN"

    def keep(self) -> DurableCursor:
        """Let the log keep its entries from now on until they are compacted."""
        return self._log.cursors.open(COMPACTION, self._log.extent.first_ordinal)

    @property
    def due_bytes(self) -> int:
        """Bytes that came after the last compaction."""
        extent = self._log.extent
        return extent.bytes_between(max(self._view.horizon, extent.first_ordinal), extent.next_ordinal)

    def start(self, spawn: Spawn, use: LogUse, wall_ms: Callable[[], int]) -> None:
        """Compact in the background; ConflictError while a compaction runs."""
        if self.running:
            raise ConflictError(f"{self._name} is being compacted already")

        async def compact() -> None:
            with use.call():
                try:
                    await self.run(wall_ms)
                except (AnabranchError, OSError) as error:
                    _log.error("%s cannot be compacted: %s", self._name, error)

        spawn(compact())

    async def run(self, wall_ms: Callable[[], int]) -> None:
        """Compact all entries stored so far; ConflictError while a compaction runs."""
        if self.running:
            raise ConflictError(f"{self._name} is being compacted already")
        self.running, began_ms = True, wall_ms()
        try:
            await self._compact(began_ms)
        except BaseException as error:
            self.error, self.failed_ms = str(error) or type(error).__name__, wall_ms()
            raise
        else:
            self.error, self.succeeded_ms = None, wall_ms()
        finally:
            self.running, self.took_ms = False, wall_ms() - began_ms

    async def drop(self) -> None:
        """Forget all compactions: readers see the log as it is; ConflictError while a compaction runs.

        The latest values are lost of which the log has dropped the entries. A crash leaves side logs that no
        note names, which are deleted as garbage.
        """
        if self.running:
            raise ConflictError(f"{self._name} is being compacted; try again when that is done")
        cursor = self._log.cursors.get(COMPACTION)
        if cursor is None:
            return
        self.running = True
        try:
            note = decode_compaction(cursor.note)
            await self._log.cursors.delete(COMPACTION)
            self._view.follow()
            for side in (note.current, note.filling):
                if side is not None:
                    await self._sides.delete(side.name)
            self.error = None
        finally:
            self.running = False

    async def _compact(self, now_ms: int) -> None:
        cursor, end = self.keep(), self._log.extent.next_ordinal
        before = decode_compaction(cursor.note)
        if end <= before.horizon:
            return
        latest = LatestKeys(UNCOMPRESSED_BYTES_MAX)
        await self._walk(end, latest.take)
        name = side_log_name(self._name, COMPACTION, end)
        filling = SideRecord(name, 0)
        await self._note(cursor, before._replace(filling=filling))
        await self._points.reach("compaction.named")
        if before.filling is not None and before.filling.name != name:
            await self._sides.delete(before.filling.name)
        # An interrupted compaction up to the same entry may have left a part of it.
        await self._sides.delete(name)
        first, ledgers = await self._copy(name, end, latest, now_ms)
        self.removed = latest.removed
        await self._points.reach("compaction.copied")
        current = None if first is None else SideRecord(name, first)
        await self._note(cursor, CompactionNote(end, current, ledgers))
        self._view.follow()
        await self._points.reach("compaction.switched")
        cursor.acknowledge_up_to(end)
        await cursor.flush()
        await self._points.reach("compaction.marked")
        if before.current is not None:
            await self._sides.delete(before.current.name)
        if current is None:
            await self._sides.delete(name)

    async def _note(self, cursor: DurableCursor, note: CompactionNote) -> None:
        cursor.set_note(encode_compaction(note))
        await cursor.flush()

    async def _walk(self, end: int, take: Callable[[Entry], None]) -> None:
        """Pass each entry below `end`, those that the last compaction kept first."""
        ordinal = self._view.first_ordinal
        while ordinal < end:
            entries = await self._view.read(ordinal, READ_ENTRIES, READ_BYTES)
            for entry in entries:
                if entry.ordinal < end:
                    take(entry)
            if not entries:
                return
            ordinal = entries[-1].ordinal + 1
            await asyncio.sleep(0)

    async def _copy(
        self, name: str, end: int, latest: LatestKeys, now_ms: int
    ) -> tuple[int | None, tuple[tuple[int, int], ...]]:
        """Copy what stays, durably; returns the ordinal of the first copy, and the ledgers of all."""
        log = await self._sides.create(name)
        side: SideLog | None = None
        ledgers, ordinal = OldLedgers(), self._view.first_ordinal
        while ordinal < end:
            entries = await self._view.read(ordinal, READ_ENTRIES, READ_BYTES)
            if not entries:
                break
            ordinal = entries[-1].ordinal + 1
            stay = [(one, latest.kept(one)) for one in entries if one.ordinal < end]
            copies = [one._replace(data=data) for one, data in stay if data is not None]
            if not copies:
                continue
            for one in copies:
                ledgers.add(one.position, one.ordinal)
            if side is None:
                origin = {LOG: str(self._name), SUBSCRIPTION: COMPACTION}
                side = SideLog(log, copies[0].ordinal, origin)
            batch = CopyBatch(now_ms)
            batch.add(side, copies)
            await batch.durable()
            await self._points.reach("compaction.copying")
        return None if side is None else side.first, ledgers.known
