# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about scalable topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Unpack

from anabranch.admin.client import calls
from anabranch.admin.client.http_client import HttpClient
from anabranch.admin.client.layout_options import (
    RebucketOptions,
    SplitOptions,
    rebucket_query,
    segment_id,
    segment_ids,
    split_query,
)
from anabranch.admin.client.requests import TopicLike, scalable_topic, topic_name, topics_in
from anabranch.admin.models.scalable import (
    AutoScaleOverride,
    Explanation,
    ScalableMetadata,
    ScalableStats,
)
from anabranch.admin.models.topics import TopicStats
from anabranch.arguments import mapped


class ScalableMethods(HttpClient):
    """Methods about scalable topics: their life, their layout, their figures."""

    def create_topic(
        self,
        topic: TopicLike,
        segments: int = 1,
        properties: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Create a scalable topic with this many segments; ConflictError if it exists.

        >>> admin.create_topic("orders", segments=2, properties={"team": "sales"})
        >>> admin.list_topics("public/default")
        ['topic://public/default/orders']
        """
        query = {"numInitialSegments": segments}
        body = mapped("properties", properties) or None
        self.send(calls.CREATE_TOPIC(scalable_topic(topic), query=query, body=body), timeout)

    def delete_topic(self, topic: TopicLike, *, force: bool = False, timeout: float | None = None) -> None:
        """Delete a scalable topic; InvalidConfigurationError while it has consumers, unless forced."""
        self.send(calls.DELETE_TOPIC(scalable_topic(topic), query={"force": force}), timeout)

    def migrate(self, topic: TopicLike, *, force: bool = False, timeout: float | None = None) -> None:
        """Continue the classic topic of this name as a scalable topic."""
        on = scalable_topic(topic_name(topic, "topic").topic)
        self.send(calls.MIGRATE(on, query={"force": force}), timeout)

    def list_topics(
        self, namespace: str, properties: Mapping[str, str] | None = None, *, timeout: float | None = None
    ) -> list[str]:
        """Return the scalable topics of a namespace that have all these properties."""
        filters = [("property", f"{key}={value}") for key, value in mapped("properties", properties).items()]
        request = calls.LIST_TOPICS(topics_in("scalable", namespace), query=filters)
        return self.send(request, timeout)

    def topic_metadata(self, topic: TopicLike, *, timeout: float | None = None) -> ScalableMetadata:
        """Return the stored record: epoch, segments, properties and policy.

        >>> metadata = admin.topic_metadata("orders")
        >>> {id_: segment.state for id_, segment in metadata.segments.items()}
        {0: 'ACTIVE', 1: 'ACTIVE'}
        """
        return self.send(calls.TOPIC_METADATA(scalable_topic(topic)), timeout)

    def set_properties(
        self, topic: TopicLike, properties: Mapping[str, str], *, timeout: float | None = None
    ) -> None:
        """Change these properties of a topic; the others stay."""
        body = mapped("properties", properties)
        self.send(calls.SET_PROPERTIES(scalable_topic(topic), body=body), timeout)

    def delete_property(self, topic: TopicLike, key: str, *, timeout: float | None = None) -> None:
        """Remove one property of a topic."""
        self.send(calls.DELETE_PROPERTY(scalable_topic(topic), query={"key": key}), timeout)

    def topic_stats(self, topic: TopicLike, *, timeout: float | None = None) -> ScalableStats:
        """Rates, sizes and backlogs of a topic, of its segments and of its subscriptions.

        >>> (admin.topic_stats("orders")).active_segments
        2
        """
        return self.send(calls.TOPIC_STATS(scalable_topic(topic)), timeout)

    def segment_stats(self, topic: TopicLike, segment: int, *, timeout: float | None = None) -> TopicStats:
        """Return the stats of one segment, with its producers and consumers."""
        request = calls.SEGMENT_STATS(scalable_topic(topic), segment_id(segment))
        return self.send(request, timeout)

    def why(self, topic: TopicLike, *, timeout: float | None = None) -> Explanation:
        """Changes under way, the state of each subscription, and the last decisions of auto-scaling.

        >>> (admin.why("orders")).troubles
        {}
        """
        return self.send(calls.WHY(scalable_topic(topic)), timeout)

    def split(self, topic: TopicLike, segment: int, **how: Unpack[SplitOptions]) -> None:
        """Split a segment in the middle, at the given start hashes, or into parts of equal width or load.

        >>> admin.split("orders", 0)
        >>> admin.merge("orders", [2, 3])
        >>> (admin.topic_metadata("orders")).epoch
        2
        """
        query = split_query(how)
        request = calls.SPLIT(scalable_topic(topic), segment_id(segment), query=query)
        self.send(request, how.get("timeout"))

    def merge(self, topic: TopicLike, segments: Iterable[int], *, timeout: float | None = None) -> None:
        """Merge neighbouring segments into one."""
        ids = segment_ids(segments)
        self.send(calls.MERGE(scalable_topic(topic), *ids), timeout)

    def rebucket(self, topic: TopicLike, segment: int, **how: Unpack[RebucketOptions]) -> None:
        """Replace a segment by one with buckets of equal width or load, or with these boundaries."""
        query = rebucket_query(how)
        request = calls.REBUCKET(scalable_topic(topic), segment_id(segment), query=query)
        self.send(request, how.get("timeout"))

    def auto_scale_policy(
        self, topic: TopicLike, *, timeout: float | None = None
    ) -> AutoScaleOverride | None:
        """Return the fields of the auto-scaling policy that the topic sets itself; None if it sets none."""
        return self.send(calls.AUTO_SCALE_POLICY(scalable_topic(topic)), timeout)

    def set_auto_scale_policy(
        self, topic: TopicLike, policy: AutoScaleOverride | None, *, timeout: float | None = None
    ) -> None:
        """Set the fields of the auto-scaling policy of a topic; None lets it follow its namespace."""
        call = calls.REMOVE_AUTO_SCALE_POLICY if policy is None else calls.SET_AUTO_SCALE_POLICY
        self.send(call(scalable_topic(topic), body=policy), timeout)
