"""`anabranch backup` and `restore`: copies of a data directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from anabranch.cli.answers import tell
from anabranch.cli.options import AsJson, DataDirectory
from anabranch.cli.signals import ended_by_signals
from anabranch.data.backup import Progress, back_up
from anabranch.data.manifest import Manifest
from anabranch.data.restore import restore as restore_data
from anabranch.errors import counted


def backup(
    target: Annotated[
        str, Parameter(name="FOLDER", help="folder for the copy; empty, or made by this command")
    ],
    /,
    *,
    data: DataDirectory = "./anabranch-data",
    as_json: AsJson = False,
) -> int:
    """Copy a data directory consistently, while brokers serve it or after they stopped."""
    with ended_by_signals(), _progress("copying") as progress:
        manifest = back_up(Path(data).absolute(), Path(target).absolute(), progress)
    return tell(_figures(manifest), f"backed up {data} to {target}: {_size(manifest)}", as_json=as_json)


def restore(
    source: Annotated[str, Parameter(name="FOLDER", help="the folder that `anabranch backup` made")],
    /,
    *,
    data: DataDirectory = "./anabranch-data",
    as_json: AsJson = False,
) -> int:
    """Make a data directory from a backup, after verifying every byte of it."""
    with ended_by_signals(), _progress("restoring") as progress:
        manifest = restore_data(Path(source).absolute(), Path(data).absolute(), progress)
    taken = datetime.fromtimestamp(manifest.taken_at_ms / 1000, UTC)
    text = f"restored {data} as of {taken:%Y-%m-%d %H:%M:%S} UTC: {_size(manifest)}"
    return tell(_figures(manifest), text, as_json=as_json)


def _figures(manifest: Manifest) -> dict[str, int]:
    return {
        "files": len(manifest.files),
        "bytes": manifest.size_bytes,
        "takenAtMs": manifest.taken_at_ms,
    }


def _size(manifest: Manifest) -> str:
    return f"{counted(len(manifest.files), 'file')}, {manifest.size_bytes:,} bytes"


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
