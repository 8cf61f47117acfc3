"""`anabranch store ...`: the data directory of a stopped broker."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from anabranch.cli.options import AsJson, DataDirectory, command_group
from anabranch.cli.signals import ended_by_signals
from anabranch.data import lost_stores
from anabranch.data.directory import METADATA_FILE, open_data
from anabranch.data.inspection import (
    disagreements,
    inspect_metadata,
    inspect_store,
    show_store,
    store_numbers,
)
from anabranch.errors import InvalidConfigurationError, counted
from anabranch.ledger.findings import Finding, StoreReport
from anabranch.metadata.sqlite.sqlite_check import MetadataFinding

EXIT_DAMAGED = 1

app = command_group(
    "store", "Show, check or repair the data directory of a stopped broker.", help_epilogue=""
)


@app.command
def show(*, data: DataDirectory = "./anabranch-data", as_json: AsJson = False) -> int:
    """List the stores and logs of a data directory; changes no file."""
    with ended_by_signals(), _stopped(data) as root:
        stores = {number: asyncio.run(show_store(root, number)) for number in store_numbers(root)}
    if as_json:
        print(json.dumps({number: [log._asdict() for log in logs] for number, logs in stores.items()}))
        return 0
    for number, logs in stores.items():
        print(f"store {number}: {counted(len(logs), 'log')}, {sum(log.size_bytes for log in logs):,} bytes")
        for log in logs:
            if log.spilled_from:
                print(f"  {log.name}: {counted(log.entries, 'spilled entry')} of {log.spilled_from}")
                continue
            state = "sealed, " if log.sealed else ""
            entries = counted(log.entries, "entry")
            readers = f", subscriptions {', '.join(log.subscriptions)}" if log.subscriptions else ""
            print(f"  {log.name}: {state}{counted(log.messages, 'message')} in {entries}{readers}")
    return 0


@app.command
def check(*, data: DataDirectory = "./anabranch-data", as_json: AsJson = False) -> int:
    """Read every stored byte and report damage; changes no file, and exits with 1 for damage."""
    return _inspect(data, repair=False, accepted=False, as_json=as_json)


@app.command
def repair(
    *,
    data: DataDirectory = "./anabranch-data",
    accept_loss: Annotated[
        bool, Parameter(help="start stores whose files are gone from scratch, without their messages")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Rebuild what can be rebuilt, and report the entries that are lost; take a copy first."""
    return _inspect(data, repair=True, accepted=accept_loss, as_json=as_json)


def _inspect(data: str, *, repair: bool, accepted: bool, as_json: bool) -> int:
    with ended_by_signals(), _stopped(data) as root:
        metadata = inspect_metadata(root, repair=repair)
        stores = {
            number: asyncio.run(inspect_store(root, number, repair=repair)) for number in store_numbers(root)
        }
        lost = _lost(root, stores, accept=accepted)
        differences = asyncio.run(disagreements(root))
    if as_json:
        shown = {number: _as_json(report) for number, report in stores.items()}
        found = [asdict(finding) for finding in metadata]
        whole = {"metadata": found, "stores": shown, "lost_stores": lost, "disagreements": differences}
        print(json.dumps(whole))
    else:
        _print_report("metadata", "", metadata)
        for number, report in stores.items():
            _print_report(
                f"store {number}",
                f"{counted(report.logs, 'log')}, {counted(report.entries, 'entry')}, ",
                report.findings,
            )
        for number in lost:
            print(f"store {number}: the files of this store are gone; {_REMEDIES[accepted]}")
        for difference in differences:
            print(difference)
    damaged = metadata or differences or any(report.findings for report in stores.values())
    return EXIT_DAMAGED if (lost and not accepted) or (damaged and not repair) else 0


def _print_report(about: str, content: str, findings: Sequence[Finding | MetadataFinding]) -> None:
    lost = sum(finding.lost_entries for finding in findings if isinstance(finding, Finding))
    entries = f", {counted(lost, 'lost entry')}" if lost else ""
    print(f"{about}: {content}{_places(len(findings))}{entries}")
    for finding in findings:
        print(f"  {finding}")


_REMEDIES = {
    False: "restore a backup, or give its messages up with `anabranch store repair --accept-loss`",
    True: "the next start makes it from scratch",
}


def _lost(root: Path, stores: dict[int, StoreReport], *, accept: bool) -> list[int]:
    """Stores that the metadata knows, but whose files are gone."""
    lost = lost_stores.find_lost(lost_stores.known_stores(root), stores)
    for number in lost if accept else ():
        asyncio.run(lost_stores.accept_loss(root, number))
    return lost


def _places(count: int) -> str:
    return counted(count, "damaged place") if count else "no damage"


def _as_json(report: StoreReport) -> dict[str, Any]:
    return {
        "logs": report.logs,
        "entries": report.entries,
        "lost_entries": report.lost_entries,
        "findings": [asdict(finding) for finding in report.findings],
    }


@contextmanager
def _stopped(data: str) -> Iterator[Path]:
    """The data directory, locked against brokers; refuses a folder that is not one."""
    root = Path(data).absolute()
    if not (root / METADATA_FILE).exists() and not store_numbers(root):
        raise InvalidConfigurationError(f"{root} is not a data directory; name one with --data")
    lock = open_data(str(root))
    try:
        yield root
    finally:
        os.close(lock)
