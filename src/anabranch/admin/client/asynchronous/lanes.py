"""Methods about lanes."""

from __future__ import annotations

from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import TopicLike, ask, change, get, subscription_path
from anabranch.admin.models.lanes import LaneInfo, LaneMessage, SkippedEntries


class AsyncLaneMethods(AsyncHttpClient):
    """Methods about the lanes of a subscription: the messages of keys that wait."""

    async def lanes(
        self, topic: TopicLike, subscription: str, *, timeout: float | None = None
    ) -> list[LaneInfo]:
        """The lanes of a subscription of a scalable or classic topic, the largest first.

        >>> await admin.lanes("orders", "billing")
        []
        """
        path = subscription_path(topic, subscription, "lanes")
        return await self.send(get(path, list[LaneInfo]), timeout)

    async def lane(
        self, topic: TopicLike, subscription: str, lane: str, *, timeout: float | None = None
    ) -> LaneInfo:
        """One lane by its name."""
        path = subscription_path(topic, subscription, "lanes", lane)
        return await self.send(get(path, LaneInfo), timeout)

    async def peek_lane(
        self,
        topic: TopicLike,
        subscription: str,
        lane: str,
        count: int = 10,
        *,
        timeout: float | None = None,
    ) -> list[LaneMessage]:
        """The first messages that wait in a lane; they stay there."""
        path = subscription_path(topic, subscription, "lanes", lane, "messages")
        return await self.send(get(path, list[LaneMessage], {"count": count}), timeout)

    async def release_lane(
        self, topic: TopicLike, subscription: str, lane: str, *, timeout: float | None = None
    ) -> None:
        """Let a parked or paused lane go on."""
        path = subscription_path(topic, subscription, "lanes", lane, "release")
        await self.send(change("POST", path), timeout)

    async def skip_lane(
        self,
        topic: TopicLike,
        subscription: str,
        lane: str,
        count: int | None = None,
        *,
        timeout: float | None = None,
    ) -> int:
        """Acknowledge the first `count` entries of a lane, or all of them; returns how many."""
        path = subscription_path(topic, subscription, "lanes", lane, "skip")
        answer = await self.send(ask("POST", path, SkippedEntries, query={"count": count}), timeout)
        return answer.skipped_entries
