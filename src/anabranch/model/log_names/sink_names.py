"""The names of the two logs of Spark's exactly-once sink, which are classic topics.

A control process makes these logs on first use, so it must know their names. Nothing here knows Spark.
"""

from __future__ import annotations

import re
from typing import Final

SINK_SUBSCRIPTION: Final = "sink"
"""Keeps the records and rows of a sink until they are published."""

_LOG = re.compile(r"persistent://[^/]+/[^/]+/__sink-(.+)-(rows|records)")


def sink_log(namespace: str, sink_id: str, kind: str) -> str:
    """Return the log of a sink in a namespace such as public/default; its kind is `rows` or `records`."""
    return f"persistent://{namespace}/__sink-{sink_id}-{kind}"


def sink_of_log(topic: str) -> str | None:
    """Return the id of the sink that a classic topic belongs to; None for any other topic."""
    match = _LOG.fullmatch(topic)
    return None if match is None else match[1]
