"""Iceberg tables: which metadata file counts, which snapshots a load may follow, which files a task reads.

Example: a table whose snapshot 1 was loaded has got the snapshots 2 (append), 3 (replace) and 4 (append)
since. The next load reads the files that 2 and 4 appended; 3 only wrote the same rows into other files. If
these files have 40, 30, 50 and 10 MiB, and a task reads up to 64 MiB, three tasks read [40], [30] and [50,
10].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anabranch.errors import InvalidConfigurationError

_METADATA = re.compile(r"v?(\d+)(-[^.]+)?(\.gz)?\.metadata\.json")

_SAME_ROWS = ("append", "replace")
"""Operations that remove no row; `replace` writes the same rows into other files."""


class TableSnapshot(NamedTuple):
    """A snapshot of a table, with the operation that made it: append, replace, overwrite or delete."""

    id: int
    operation: str


def newest_metadata(names: Iterable[str], hint: str | None) -> str | None:
    """Return the newest metadata file of a table without a catalog, or None if there is none.

    `hint` is the text of `version-hint.text`, which tables of Hadoop catalogs have. Raises
    InvalidConfigurationError if several files have the highest version: only a catalog knows which one
    counts.
    """
    versions: dict[int, list[str]] = {}
    for name in names:
        match = _METADATA.fullmatch(name)
        if match is not None:
            versions.setdefault(int(match[1]), []).append(name)
    if not versions:
        return None
    number = int(hint) if hint is not None and hint.isdecimal() else max(versions)
    found = versions.get(number, [])
    if len(found) != 1:
        raise InvalidConfigurationError(
            f"the table has {len(found)} metadata files of version {number}; name the one that counts, or "
            "the catalog of the table"
        )
    return found[0]


def appended_since(history: Sequence[TableSnapshot], loaded: int) -> list[int]:
    """Return the snapshots of a table that appended rows after the loaded one.

    `history` has the snapshots up to the wanted one, oldest first. Raises InvalidConfigurationError if loaded
    rows were deleted or changed later, or if the history does not reach back to the loaded snapshot.
    """
    ids = [one.id for one in history]
    if loaded not in ids:
        raise InvalidConfigurationError(
            f"snapshot {loaded}, which was loaded, is no longer in the history of the table; "
            "load the whole table again with another --state directory"
        )
    later = history[ids.index(loaded) + 1 :]
    for one in later:
        if one.operation not in _SAME_ROWS:
            raise InvalidConfigurationError(
                f"snapshot {one.id} of the table ({one.operation}) changed or deleted rows after snapshot "
                f"{loaded} was loaded; load the whole table again with another --state directory"
            )
    return [one.id for one in later if one.operation == "append"]


def share_files(sizes_bytes: Sequence[int], task_bytes: int) -> list[range]:
    """Return the files of each task as ranges of indexes: consecutive files up to a size in all."""
    tasks: list[range] = []
    start, total = 0, 0
    for at, size in enumerate(sizes_bytes):
        if at > start and total + size > task_bytes:
            tasks.append(range(start, at))
            start, total = at, 0
        total += size
    return [*tasks, range(start, len(sizes_bytes))] if sizes_bytes else []
