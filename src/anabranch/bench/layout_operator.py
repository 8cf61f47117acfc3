"""The layout changes of the benchmark: one segment is split, its two children are merged."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName

NAME = TopicName.parse("topic://public/default/bench-layout")

KEYS = [f"key-{n}" for n in range(1000)]

BY_HAND: dict[str, object] = {"scalableTopicAutoScaleEnabled": "false"}


def percentile(times: Sequence[float], at: int) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[at - 1] * 1e3


def active_segments(admin: AdminClient) -> list[int]:
    """Return the ids of the active segments, by range."""
    segments = admin.topic_metadata(NAME)["segments"].values()
    active = [(s["hashRange"]["start"], s["segmentId"]) for s in segments if s["state"] == "ACTIVE"]
    return [id_ for _, id_ in sorted(active)]


def change_layout(admin: AdminClient, number: int) -> None:
    """Split the only segment if `number` is even, else merge the two."""
    active = active_segments(admin)
    if number % 2 == 0:
        admin.split(NAME, active[0])
    else:
        admin.merge(NAME, active)


Span = tuple[float, float]


def timed_change(http_url: str, number: int) -> Span:
    with AdminClient(http_url) as admin:
        began = time.perf_counter()
        change_layout(admin, number)
        return began, time.perf_counter()
