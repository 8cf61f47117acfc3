"""Stores whose directories are empty, gone, or hold another store than the metadata knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from anabranch.data.directory import METADATA_FILE
from anabranch.ledger.findings import StoreReport
from anabranch.metadata import records
from anabranch.metadata.record_store import RecordStore
from anabranch.metadata.records import StoreRecord
from anabranch.metadata.sqlite.sqlite_check import read_state
from anabranch.metadata.sqlite.sqlite_store import SqliteStore


def find_lost(known: Mapping[int, int], found: Mapping[int, StoreReport]) -> list[int]:
    """Numbers of the stores whose files are lost; `known` has the identities that the metadata knows."""
    return [number for number, identity in sorted(known.items()) if _is_lost(identity, found.get(number))]


def _is_lost(identity: int, report: StoreReport | None) -> bool:
    if report is None:
        return identity != 0
    # A store without an identity of its own cannot be read, but its files are there.
    return identity != 0 and report.store_id not in (0, identity)


def known_stores(root: Path) -> dict[int, int]:
    """The stores that the metadata knows, with their identities; changes no file."""
    prefix = f"{records.STORES}/"
    found = read_state(root / METADATA_FILE).records.items()
    stores = {path.removeprefix(prefix): kept.value for path, kept in found if path.startswith(prefix)}
    return {int(part): records.decode(StoreRecord, value).store_id for part, value in stores.items()}


async def accept_loss(root: Path, number: int) -> None:
    """Let the next owner start the store empty; its messages are given up."""
    store = SqliteStore(root / METADATA_FILE)
    try:
        await RecordStore(store).update_record(
            StoreRecord,
            records.store_path(number),
            lambda record: msgspec.structs.replace(record or StoreRecord(), store_id=0),
        )
    finally:
        await store.close()
