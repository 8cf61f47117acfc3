"""Names of task attempts, which tell for which write of which batch an attempt staged its rows. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})-.+")
_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class BatchRun(NamedTuple):
    """A micro-batch as one run of a query executes it; Spark repeats a micro-batch in another run only."""

    query_run: str
    """The id of the run, which is new whenever the query is started."""
    batch: str


def batch_run_of(job_group: str | None, batch: str | None) -> BatchRun | None:
    """Return the run of a micro-batch; None outside of a stream.

    Spark names the group of a query's jobs after its run. A name that a user gave says nothing about runs.
    """
    if job_group is None or batch is None or _RUN.fullmatch(job_group) is None:
        return None
    return BatchRun(job_group, batch)


def attempt_name(run: BatchRun | None, write: str, unique: str) -> str:
    """Return the name of an attempt; `write` and `unique` are random hexadecimal digits."""
    return unique if run is None else f"{_digest(run)}-{write[:8]}-{unique}"


def has_other_write(attempts: Iterable[str], run: BatchRun | None, write: str) -> bool:
    """Whether one of the attempts belongs to another write in the same run of the same micro-batch."""
    if run is None:
        return False
    found = (_NAME.fullmatch(name) for name in attempts)
    return any(name is not None and name[1] == _digest(run) and name[2] != write[:8] for name in found)


def _digest(run: BatchRun) -> str:
    return hashlib.sha256("/".join(run).encode()).hexdigest()[:16]
