"""`anabranch store`, `backup`, `restore` and `secret`: commands over data directories."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anabranch.cli.messages import ended_by_signals
from anabranch.data.backup import Progress, back_up
from anabranch.data.directory import METADATA_FILE, open_data
from anabranch.data.inspection import (
    disagreements,
    inspect_metadata,
    inspect_store,
    show_store,
    store_numbers,
)
from anabranch.data.lost_stores import accept_loss, find_lost, known_stores
from anabranch.data.manifest import Manifest
from anabranch.data.restore import restore
from anabranch.errors import InvalidConfigurationError
from anabranch.ledger.findings import Finding, StoreReport
from anabranch.metadata.sqlite_check import MetadataFinding
from anabranch.security.peer_secret_file import PeerSecretFile

EXIT_DAMAGED = 1
OVERLAP_MAX_S = 86_400.0


def run(arguments: argparse.Namespace) -> int:
    with ended_by_signals():
        return _ACTIONS[arguments.action](arguments)


def _show(arguments: argparse.Namespace) -> int:
    with _stopped(arguments.data) as root:
        stores = {number: asyncio.run(show_store(root, number)) for number in store_numbers(root)}
    if arguments.json:
        print(json.dumps({number: [log._asdict() for log in logs] for number, logs in stores.items()}))
        return 0
    for number, logs in stores.items():
        print(f"store {number}: {len(logs)} logs, {sum(log.size_bytes for log in logs):,} bytes")
        for log in logs:
            if log.spilled_from:
                print(f"  {log.name}: {log.entries} spilled entries of {log.spilled_from}")
                continue
            state = "sealed, " if log.sealed else ""
            readers = f", subscriptions {', '.join(log.subscriptions)}" if log.subscriptions else ""
            print(f"  {log.name}: {state}{log.messages} messages in {log.entries} entries{readers}")
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    repair = arguments.action == "repair"
    accepted = repair and arguments.accept_loss
    with _stopped(arguments.data) as root:
        metadata = inspect_metadata(root, repair=repair)
        stores = {
            number: asyncio.run(inspect_store(root, number, repair=repair)) for number in store_numbers(root)
        }
        lost = _lost(root, stores, accept=accepted)
        differences = asyncio.run(disagreements(root))
    if arguments.json:
        shown = {number: _as_json(report) for number, report in stores.items()}
        found = [asdict(finding) for finding in metadata]
        whole = {"metadata": found, "stores": shown, "lost_stores": lost, "disagreements": differences}
        print(json.dumps(whole))
    else:
        _print_report("metadata", "", metadata)
        for number, report in stores.items():
            _print_report(
                f"store {number}", f"{report.logs} logs, {report.entries} entries, ", report.findings
            )
        for number in lost:
            print(f"store {number}: the files of this store are gone; {_REMEDIES[accepted]}")
        for difference in differences:
            print(difference)
    damaged = metadata or differences or any(report.findings for report in stores.values())
    return EXIT_DAMAGED if (lost and not accepted) or (damaged and not repair) else 0


def _print_report(about: str, content: str, findings: Sequence[Finding | MetadataFinding]) -> None:
    lost = sum(finding.lost_entries for finding in findings if isinstance(finding, Finding))
    entries = f", {lost} lost entries" if lost else ""
    print(f"{about}: {content}{_places(len(findings))}{entries}")
    for finding in findings:
        print(f"  {finding}")


_REMEDIES = {
    False: "restore a backup, or give its messages up with `anabranch store repair --accept-loss`",
    True: "the next start begins it anew",
}


def _lost(root: Path, stores: dict[int, StoreReport], *, accept: bool) -> list[int]:
    """Stores that the metadata knows, but whose files are gone."""
    lost = find_lost(known_stores(root), stores)
    for number in lost if accept else ():
        asyncio.run(accept_loss(root, number))
    return lost


def _places(count: int) -> str:
    return f"{count} damaged places" if count else "no damage"


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
        raise InvalidConfigurationError(f"{root} is no data directory; name one with --data")
    lock = open_data(str(root))
    try:
        yield root
    finally:
        os.close(lock)


def _back_up(arguments: argparse.Namespace) -> int:
    with _progress("copying") as progress:
        manifest = back_up(Path(arguments.data).absolute(), Path(arguments.target).absolute(), progress)
    print(f"backed up {arguments.data} to {arguments.target}: {_size(manifest)}")
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    with _progress("restoring") as progress:
        manifest = restore(Path(arguments.backup).absolute(), Path(arguments.data).absolute(), progress)
    taken = datetime.fromtimestamp(manifest.taken_at_ms / 1000, UTC)
    print(f"restored {arguments.data} as of {taken:%Y-%m-%d %H:%M:%S} UTC: {_size(manifest)}")
    return 0


def _size(manifest: Manifest) -> str:
    return f"{len(manifest.files)} files, {manifest.size_bytes:,} bytes"


@contextmanager
def _progress(about: str) -> Iterator[Progress]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task(about, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _rotate(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.overlap <= OVERLAP_MAX_S:
        raise InvalidConfigurationError(f"--overlap must be 0 to {OVERLAP_MAX_S:g} seconds")
    if not (Path(arguments.data) / METADATA_FILE).is_file():
        raise InvalidConfigurationError(f"{arguments.data} is no data directory: it has no {METADATA_FILE}")
    file = PeerSecretFile(Path(arguments.data))
    made = file.rotate(arguments.overlap)
    print(f"made a new secret; the old one is accepted for {arguments.overlap:g} more seconds", flush=True)
    # If the command is interrupted, brokers end the old secret by themselves.
    time.sleep(arguments.overlap)
    file.finish(made)
    print("the old secret has ended")
    return 0


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "show": _show,
    "check": _inspect,
    "repair": _inspect,
    "backup": _back_up,
    "restore": _restore,
    "rotate": _rotate,
}
