"""The layout changes of the benchmark: one segment is split, its two children are merged."""

from __future__ import annotations

import time

from anabranch.admin.client import AdminClient
from anabranch.model.names import TopicName

NAME = TopicName.parse("topic://public/default/bench-layout")

KEYS = [f"key-{n}" for n in range(1000)]

BY_HAND: dict[str, object] = {"scalableTopicAutoScaleEnabled": "false"}

Span = tuple[float, float]
"""Begin and end on the monotonic clock, which all processes share."""


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


def quiet_span(seconds: float) -> Span:
    began = time.perf_counter()
    time.sleep(seconds)
    return began, time.perf_counter()


def timed_change(http_url: str, number: int) -> Span:
    with AdminClient(http_url) as admin:
        began = time.perf_counter()
        change_layout(admin, number)
        return began, time.perf_counter()
