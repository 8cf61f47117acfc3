"""The lag of streaming queries, for notebooks and monitoring: a function, and a listener that records it.

Spark's progress has no metrics for a Python source, so the lag is derived from the offsets.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from anabranch.errors import InvalidConfigurationError
from anabranch.spark.decide.source.lag import Lag, lag_between, sum_of
from anabranch.spark.decide.source.offsets import Cut, decode

log = logging.getLogger("anabranch.spark")

HISTORY_MAX = 1000
"""Progress events that a listener keeps per query."""


def lag_of(progress: Any) -> Lag | None:
    """Return how many messages the Anabranch sources of a query are behind, or None if it has none.

    Takes `query.lastProgress`, an item of `query.recentProgress`, or the progress of a listener's event.

    Example:
        orders = read_stream(spark, "pulsar://127.0.0.1:6650", "orders")
        query = orders.writeStream.format("noop").start()
        query.processAllAvailable()
        behind = lag_of(query.lastProgress)
        query.stop()
        assert behind is not None and behind.messages == 0
    """
    value = json.loads(progress.json) if hasattr(progress, "json") else progress
    found = []
    for source in (value or {}).get("sources", ()):
        reached, newest = _cut(source.get("endOffset")), _cut(source.get("latestOffset"))
        if reached is not None and newest is not None:
            found.append(lag_between(reached, newest))
    return sum_of(found) if found else None


def _cut(offset: Any) -> Cut | None:
    """Return the cut in a progress event, or None for the offset of another source."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
        found = decode(value)
    except (InvalidConfigurationError, ValueError):
        return None
    return found if isinstance(found, Cut) else None


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """Logs and records the lag of every streaming query of a session.

    `spark.streams.addListener(listener)` starts it. `listener.lags` has the newest lag by the name of the
    query, or by its id if it has no name; `listener.history` has the earlier ones with their times.

    Example:
        listener = LagListener()
        spark.streams.addListener(listener)
        orders = read_stream(spark, "pulsar://127.0.0.1:6650", "orders")
        query = orders.writeStream.format("noop").queryName("copy").start()
        query.processAllAvailable()
        query.stop()
        print(listener.lags.get("copy"))
    """

    def __init__(self) -> None:
        self.lags: dict[str, Lag] = {}
        self.history: dict[str, deque[tuple[str, Lag]]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the first lag comes with the first progress event."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        found = lag_of(progress)
        if found is None:
            return
        name = progress.name or str(progress.id)
        self.lags[name] = found
        self.history.setdefault(name, deque(maxlen=HISTORY_MAX)).append((progress.timestamp, found))
        log.info("query %s: %s", name, found)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: an idle query still has the lag of its last progress event."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the last lag stays available, for instance in a notebook."""
