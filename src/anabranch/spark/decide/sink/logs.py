"""Decides which logs of exactly-once sinks are no longer needed. Pure.

A batch job without `sinkId` gets a sink of its own, whose name no later run can know. All other sinks belong
to a checkpoint or to a name that the user chose, and a query or a job may return to them.

Example: with an idle time of 3,600 s, the sink `job-` and 32 digits, whose logs were last used at 1,000 s and
have no writer, is kept at 4,599 s ("its job may still run") and can be removed at 4,600 s. The sink
86216551e51c270e, which belongs to the checkpoint /data/checkpoint, is kept at any age.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.model.sink_names import sink_of_log

_JOB = "job-"
_JOB_ID = re.compile(r"job-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class SinkLog:
    """The use of one log, as a broker reports it."""

    name: str
    last_used_ms: int
    """When its newest entry was stored, or when it was created; 0 if neither is known."""
    writers: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SinkUse:
    """The logs of one sink."""

    id: str
    logs: tuple[SinkLog, ...]
    """The row log comes first: if only it is removed, the records of the sink still say what is done."""

    @property
    def last_used_ms(self) -> int:
        return max(log.last_used_ms for log in self.logs)

    @property
    def writers(self) -> int:
        return sum(log.writers for log in self.logs)

    @property
    def size_bytes(self) -> int:
        return sum(log.size_bytes for log in self.logs)


def checkpoint_sink(checkpoint: str) -> str:
    """Return the sink of a stream without `sinkId`, which belongs to the checkpoint of its query."""
    path = checkpoint.removeprefix("file://").removeprefix("file:").rstrip("/")
    return hashlib.sha256(path.encode()).hexdigest()[:16]


def job_sink(run: str) -> str:
    """Return the sink of a batch job without `sinkId`; `run` has 32 hexadecimal digits."""
    return f"{_JOB}{run}"


def is_job_sink(sink_id: str) -> bool:
    return _JOB_ID.fullmatch(sink_id) is not None


def is_sink_log(topic: str) -> bool:
    return sink_of_log(topic) is not None


def sinks_of(logs: Iterable[SinkLog]) -> Mapping[str, SinkUse]:
    """Return the sinks whose logs are among these, by id."""
    found: dict[str, list[SinkLog]] = defaultdict(list)
    for log in logs:
        sink_id = sink_of_log(log.name)
        if sink_id is not None:
            found[sink_id].append(log)
    return {
        id_: SinkUse(id_, tuple(sorted(found[id_], key=lambda log: log.name, reverse=True)))
        for id_ in sorted(found)
    }


def why_kept(sink: SinkUse, now_ms: int, idle_s: float) -> str | None:
    """Return why a sink must be kept unless the user orders its removal, or None if no job can need it."""
    if not is_job_sink(sink.id):
        return "its query or job may be started again"
    if sink.writers:
        return "a task writes to it"
    if not sink.last_used_ms or now_ms - sink.last_used_ms < idle_s * 1000:
        return "its job may still run"
    return None
