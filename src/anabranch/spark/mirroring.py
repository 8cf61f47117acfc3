"""Mirrors the committed cut of a stream to a subscription at the broker, for retention and for tools.

Never needed for a running query: Spark's offset log alone says which messages were read, so a mirror that
fails is logged and tried again with a later cut.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from anabranch.errors import AnabranchError
from anabranch.spark.decide.offsets import Cut
from anabranch.spark.decide.topology import Topology
from anabranch.spark.topic_views import TopicViews, log

PAUSE_SHARE = 10
"""A pause follows each mirrored cut, so many times as long as mirroring took."""


class CutMirror:
    """The last committed cut that is not mirrored yet."""

    def __init__(self, views: TopicViews) -> None:
        self._views = views
        self._waiting: Cut | None = None
        self._not_before = 0.0

    def committed(self, cut: Cut) -> None:
        """Note a cut; an earlier one that waits is replaced."""
        if self._views.options.subscription is not None:
            self._waiting = cut

    def send(self, topologies: Mapping[str, Topology]) -> None:
        """Mirror the waiting cut, unless the last one was mirrored just before."""
        began = time.monotonic()
        name, cut = self._views.options.subscription, self._waiting
        if name is None or cut is None or not topologies or began < self._not_before:
            return
        self._waiting = None
        reader = self._views.service.reader()
        for topic in sorted(cut.topics.keys() & topologies.keys()):
            try:
                reader.mirror(topic, name, cut.topics[topic], topologies[topic])
            except AnabranchError as error:
                log.warning("subscription %s of topic %s was not moved: %s", name, topic, error)
        ended = time.monotonic()
        self._not_before = ended + PAUSE_SHARE * (ended - began)
