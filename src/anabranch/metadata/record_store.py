"""Typed records over the metadata port: read, create, and update by compare-and-set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

from anabranch.errors import MetadataError, NotAllowedError, NotFoundError, VersionConflictError
from anabranch.metadata import records
from anabranch.metadata.records import Record
from anabranch.metadata.store import ABSENT, MetadataStore
from anabranch.model.names import decode_part

R = TypeVar("R", bound=Record)

PAGE_RECORDS = 200
"""Records that are read and decoded in one slice, which takes about two milliseconds."""

ATTEMPTS = 64
"""Most attempts of one update; each lost race means that another writer succeeded."""

RECORD_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of one record, such as a layout of ten thousand segments: each change writes all of it."""


class RecordStore:
    """The verbs that all kinds of records share."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    async def read(self, kind: type[R], path: str) -> R | None:
        stored = await self.store.get(path)
        return None if stored is None else records.decode(kind, stored.value)

    async def create_record(self, path: str, record: Record, exists: Exception) -> None:
        """Store a record that must not exist yet; raises `exists` if it does."""
        try:
            await self.store.put(path, _encode(path, record), expected=ABSENT)
        except VersionConflictError:
            raise exists from None

    async def update_record(self, kind: type[R], path: str, change: Callable[[R | None], R]) -> R:
        """Replace the record by what `change` makes of the newest one; it may be called several times.

        An exception of `change` ends the update. If it returns the same record, nothing is written.
        """
        for _ in range(ATTEMPTS):
            stored = await self.store.get(path)
            before = None if stored is None else records.decode(kind, stored.value)
            after = change(before)
            if after is before:
                return after
            version = ABSENT if stored is None else stored.version
            try:
                await self.store.put(path, _encode(path, after), expected=version)
            except VersionConflictError:
                continue
            return after
        raise MetadataError(f"{path} lost {ATTEMPTS} races in a row to other writers; try again")

    async def change_record(
        self, kind: type[R], path: str, change: Callable[[R], R], missing: Exception
    ) -> R:
        """Update a record that must exist; raises `missing` if it does not."""

        def existing(record: R | None) -> R:
            if record is None:
                raise missing
            return change(record)

        return await self.update_record(kind, path, existing)

    async def walk(self, path: str) -> AsyncIterator[tuple[tuple[str, ...], bytes]]:
        """All values below a path, each with the parts of its key below it; other work runs in between."""
        after, more = "", True
        while more:
            found = await self.store.page(path, after, PAGE_RECORDS)
            for after, stored in found:
                yield tuple(map(decode_part, after[len(path) + 1 :].split("/"))), stored.value
            more = len(found) == PAGE_RECORDS
            await asyncio.sleep(0)

    async def delete_record(self, path: str, version: int | None = None) -> None:
        with suppress(NotFoundError):
            await self.store.delete(path, expected=version)


def _encode(path: str, record: Record) -> bytes:
    encoded = records.encode(record)
    if len(encoded) > RECORD_BYTES_MAX:
        raise NotAllowedError(
            f"the record {path} would have {len(encoded)} bytes, of at most {RECORD_BYTES_MAX}; "
            "use fewer segments, consumers or properties"
        )
    return encoded
