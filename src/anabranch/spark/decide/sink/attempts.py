"""Names task attempts so that the name tells which write of which micro-batch staged the rows. Pure.

Example: in run 0f8fad5b-d9cb-469f-a165-70867728950e of a query, an attempt of write c0ffee00... of batch 7 is
57dd035e8f3345df-c0ffee00-1234abcd...: a hash of run and batch, the write, and random digits. If
`foreachBatch` writes to the same sink twice in that batch, the second write finds this name with another
write than its own in the pin, and is refused. When Spark repeats batch 7 in a later run, the hash differs,
and rows that are stored already are simply skipped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})-.+")
_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class QueryBatch(NamedTuple):
    """A micro-batch in one run of a query. Spark repeats a micro-batch only in another run."""

    query_run: str
    """Spark's id of the run, which is new whenever the query is started."""
    batch: str


def batch_run_of(job_group: str | None, batch: str | None) -> QueryBatch | None:
    """Return the run and the number of a micro-batch, or None outside a stream.

    Spark names the job group of a query after its run. A name that a user chose says nothing about runs.
    """
    if job_group is None or batch is None or _RUN.fullmatch(job_group) is None:
        return None
    return QueryBatch(job_group, batch)


def attempt_name(run: QueryBatch | None, write: str, unique: str) -> str:
    """Return the name of an attempt; `write` and `unique` are random hexadecimal digits."""
    return unique if run is None else f"{_digest(run)}-{write[:8]}-{unique}"


def has_other_write(attempts: Iterable[str], run: QueryBatch | None, write: str) -> bool:
    """Whether one of the attempts belongs to a different write in the same run of the same micro-batch."""
    if run is None:
        return False
    found = (_NAME.fullmatch(name) for name in attempts)
    return any(name is not None and name[1] == _digest(run) and name[2] != write[:8] for name in found)


def _digest(run: QueryBatch) -> str:
    return hashlib.sha256("/".join(run).encode()).hexdigest()[:16]
