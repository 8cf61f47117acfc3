"""`anabranch sink ...`: the logs of Spark's exactly-once sinks, over the admin API."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path

from anabranch.admin.client import AdminClient
from anabranch.cli.lane import size_text
from anabranch.cli.role import role_of
from anabranch.errors import ConflictError, InvalidConfigurationError, TopicNotFoundError
from anabranch.spark.decide.sink_logs import (
    SinkLog,
    SinkUse,
    checkpoint_sink,
    is_sink_log,
    sinks_of,
    why_kept,
)

LISTED_IDLE_S = 24 * 3600.0
"""The age from which on `list` calls the logs of a batch job unused, as `clean` does by default."""


def run(arguments: argparse.Namespace) -> int:
    with role_of(arguments, os.environ).open_admin() as admin:
        sinks = _load(admin, arguments.namespace)
        if arguments.action == "list":
            _list(sinks, arguments.namespace)
        elif arguments.action == "clean":
            _clean(admin, sinks, arguments.older_than_hours * 3600)
        else:
            _remove_named(admin, sinks, arguments)
    return 0


def _load(admin: AdminClient, namespace: str) -> Mapping[str, SinkUse]:
    return sinks_of(_use(admin, name) for name in admin.classic_topics(namespace) if is_sink_log(name))


def _use(admin: AdminClient, name: str) -> SinkLog:
    stats = admin.classic_stats(name)
    used_ms = max(stats.last_publish_time_stamp, stats.topic_creation_time_stamp)
    return SinkLog(name, used_ms, len(stats.publishers), stats.storage_size)


def _list(sinks: Mapping[str, SinkUse], namespace: str) -> None:
    if not sinks:
        print(f"{namespace}: no sink of Spark has logs here")
    now_ms = time.time_ns() // 10**6
    for sink in sinks.values():
        kept = why_kept(sink, now_ms, LISTED_IDLE_S) or "not used any more"
        print(f"{sink.id}  {size_text(sink.size_bytes)}, used {_age(sink, now_ms)}: {kept}")


def _age(sink: SinkUse, now_ms: int) -> str:
    if not sink.last_used_ms:
        return "at an unknown time"
    return f"{max(0, now_ms - sink.last_used_ms) / 3_600_000:,.1f} hours ago"


def _clean(admin: AdminClient, sinks: Mapping[str, SinkUse], idle_s: float) -> None:
    now_ms = time.time_ns() // 10**6
    unused = [sink for sink in sinks.values() if why_kept(sink, now_ms, idle_s) is None]
    for sink in unused:
        _remove(admin, sink)
    print(f"removed the logs of {len(unused)} batch jobs; {len(sinks) - len(unused)} sinks stay")


def _remove_named(admin: AdminClient, sinks: Mapping[str, SinkUse], arguments: argparse.Namespace) -> None:
    id_ = _id_to_remove(arguments)
    if id_ not in sinks:
        raise TopicNotFoundError(
            f"no sink {id_} has logs in {arguments.namespace}; see `anabranch sink list`"
        )
    _remove(admin, sinks[id_])
    print(f"removed the logs of sink {id_}")


def _id_to_remove(arguments: argparse.Namespace) -> str:
    """Return the sink that the user means; refuse one to which a query may still return."""
    if (arguments.id is None) == (arguments.checkpoint is None):
        raise InvalidConfigurationError("name one sink: by its id, or by --checkpoint")
    if arguments.checkpoint is not None:
        path = Path(arguments.checkpoint.removeprefix("file://").removeprefix("file:"))
        if path.exists():
            raise ConflictError(f"{path} exists, so its query may be started again; delete it first")
        return checkpoint_sink(arguments.checkpoint)
    if not arguments.yes:
        raise InvalidConfigurationError(
            f"a query or job that returns to sink {arguments.id} without its logs may write its last batch "
            "twice; pass --yes if none will"
        )
    return str(arguments.id)


def _remove(admin: AdminClient, sink: SinkUse) -> None:
    for log in sink.logs:
        # The listing may be old by now; a broker cannot tell the sink's own subscription from another one.
        if _use(admin, log.name).writers:
            raise ConflictError(f"a task writes to {log.name}; stop its query or job first")
        admin.delete_classic_topic(log.name, force=True)
