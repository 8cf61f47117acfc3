"""`anabranch sink ...`: the logs of Spark's exactly-once sinks, over the admin API."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from anabranch.admin.client import AdminClient
from anabranch.cli.answers import confirmed, tell
from anabranch.cli.options import ADMIN, AdminOptions, Yes, command_group
from anabranch.cli.role import role_of
from anabranch.cli.topics.lane_text import size_text
from anabranch.errors import ConflictError, InvalidConfigurationError, TopicNotFoundError, counted
from anabranch.spark.decide.sink.logs import (
    SinkLog,
    SinkUse,
    checkpoint_sink,
    is_sink_log,
    sinks_of,
    why_kept,
)

LISTED_IDLE_S = 24 * 3600.0
"""The age from which on `list` calls the logs of a batch job unused, as `clean` does by default."""


ABOUT = """\
List, clean and remove the logs of Spark's exactly-once sinks.

An exactly-once sink of Spark keeps two logs beside its topic, which say what is written. docs/spark.md
explains how they are used. `clean` removes those of batch jobs without a sinkId, to which no job returns;
the logs of a stream, or of a sinkId, stay until you remove them. Both commands ask first.
"""

EXAMPLES = """\
examples:
  anabranch sink list                              the sinks whose logs are in public/default
  anabranch sink clean --older-than-hours 48       remove the logs of batch jobs that ended two days ago
  anabranch sink remove --checkpoint /jobs/copy    remove the logs of a stream whose checkpoint was deleted
  anabranch sink remove nightly --yes              remove the logs of a sinkId that no job uses any more
"""

app = command_group("sink", ABOUT, help_epilogue=EXAMPLES)

SinkNamespace = Annotated[str, Parameter(name="--namespace", help="tenant/namespace (public/default)")]


@app.command(name="list")
def list_sinks(*, namespace: SinkNamespace = "public/default", at: AdminOptions = ADMIN) -> int:
    """List the sinks of a namespace, and why each one stays."""
    with role_of(at, os.environ).open_admin() as admin:
        sinks = _load(admin, namespace)
    now_ms = time.time_ns() // 10**6
    kept = {sink.id: why_kept(sink, now_ms, LISTED_IDLE_S) for sink in sinks.values()}
    lines = [
        f"{sink.id}  {size_text(sink.size_bytes)}, used {_age(sink, now_ms)}: "
        f"{kept[sink.id] or 'not used any more'}"
        for sink in sinks.values()
    ]
    data = [
        {"id": sink.id, "bytes": sink.size_bytes, "lastUsedMs": sink.last_used_ms, "kept": kept[sink.id]}
        for sink in sinks.values()
    ]
    return tell(data, *lines or [f"{namespace}: no sink of Spark has logs here"], as_json=at.as_json)


@app.command
def clean(
    *,
    older_than_hours: Annotated[
        float,
        Parameter(
            metavar="H", help="keep logs that were used later than this; longer than any job takes (24)"
        ),
    ] = 24.0,
    yes: Yes = False,
    namespace: SinkNamespace = "public/default",
    at: AdminOptions = ADMIN,
) -> int:
    """Remove the logs of batch jobs without a sinkId that have ended."""
    now_ms = time.time_ns() // 10**6
    with role_of(at, os.environ).open_admin() as admin:
        sinks = _load(admin, namespace)
        unused = [s for s in sinks.values() if why_kept(s, now_ms, older_than_hours * 3600) is None]
        jobs = counted(len(unused), "batch job")
        if unused and not confirmed(f"remove the logs of {jobs} in {namespace}", yes=yes):
            return 1
        for sink in unused:
            _remove(admin, sink)
    stay = counted(len(sinks) - len(unused), "other sink")
    text = f"removed the logs of {jobs}; the logs of {stay} stay"
    return tell({"removed": [sink.id for sink in unused]}, text, as_json=at.as_json)


@app.command
def remove(
    id_: Annotated[
        str | None, Parameter(name="ID", help="the id of the sink, as `anabranch sink list` shows it")
    ] = None,
    /,
    *,
    checkpoint: Annotated[
        str | None,
        Parameter(metavar="PATH", help="the sink of the stream with this checkpointLocation, now deleted"),
    ] = None,
    yes: Yes = False,
    namespace: SinkNamespace = "public/default",
    at: AdminOptions = ADMIN,
) -> int:
    """Remove the logs of one sink, once no query or job will return to it."""
    meant = _id_to_remove(id_, checkpoint)
    with role_of(at, os.environ).open_admin() as admin:
        sinks = _load(admin, namespace)
        if meant not in sinks:
            raise TopicNotFoundError(f"no sink {meant} has logs in {namespace}; see `anabranch sink list`")
        # Without the logs, a query or job that returns to the sink may write its last batch twice.
        if not confirmed(f"remove the logs of sink {meant}, to which no job may return,", yes=yes):
            return 1
        _remove(admin, sinks[meant])
    return tell({"removed": [meant]}, f"removed the logs of sink {meant}", as_json=at.as_json)


def _load(admin: AdminClient, namespace: str) -> Mapping[str, SinkUse]:
    return sinks_of(_use(admin, name) for name in admin.classic_topics(namespace) if is_sink_log(name))


def _use(admin: AdminClient, name: str) -> SinkLog:
    stats = admin.classic_stats(name)
    used_ms = max(stats.last_publish_time_stamp, stats.topic_creation_time_stamp)
    return SinkLog(name, used_ms, len(stats.publishers), stats.storage_size)


def _age(sink: SinkUse, now_ms: int) -> str:
    if not sink.last_used_ms:
        return "at an unknown time"
    return f"{max(0, now_ms - sink.last_used_ms) / 3_600_000:,.1f} hours ago"


def _id_to_remove(id_: str | None, checkpoint: str | None) -> str:
    """Return the sink that the user means; refuse one to which a query may still return."""
    if checkpoint is not None and id_ is None:
        path = Path(checkpoint.removeprefix("file://").removeprefix("file:"))
        if path.exists():
            raise ConflictError(f"{path} exists, so its query may be started again; delete it first")
        return checkpoint_sink(checkpoint)
    if id_ is None or checkpoint is not None:
        raise InvalidConfigurationError("name one sink: by its id, or by --checkpoint")
    return id_


def _remove(admin: AdminClient, sink: SinkUse) -> None:
    for log in sink.logs:
        # The listing may be old by now; a broker cannot tell the sink's own subscription from another one.
        if _use(admin, log.name).writers:
            raise ConflictError(f"a task writes to {log.name}; stop its query or job first")
        admin.delete_classic_topic(log.name, force=True)
