"""Methods about lanes."""

from __future__ import annotations

from anabranch.admin.client import calls
from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import TopicLike, any_topic
from anabranch.admin.models.lanes import LaneInfo, LaneMessage


class AsyncLaneMethods(AsyncHttpClient):
    """Methods about the lanes of a subscription: the messages of keys that wait."""

    async def lanes(
        self, topic: TopicLike, subscription: str, *, timeout: float | None = None
    ) -> list[LaneInfo]:
        """Return the lanes of a subscription of a scalable or classic topic, the largest first.

        >>> await admin.lanes("orders", "billing")
        []
        """
        return await self.send(calls.LANES(any_topic(topic), subscription), timeout)

    async def lane(
        self, topic: TopicLike, subscription: str, lane: str, *, timeout: float | None = None
    ) -> LaneInfo:
        """Return one lane by its name."""
        return await self.send(calls.LANE(any_topic(topic), subscription, lane), timeout)

    async def peek_lane(
        self,
        topic: TopicLike,
        subscription: str,
        lane: str,
        count: int = 10,
        *,
        timeout: float | None = None,
    ) -> list[LaneMessage]:
        """Return the first messages that wait in a lane; they stay there."""
        request = calls.PEEK_LANE(any_topic(topic), subscription, lane, query={"count": count})
        return await self.send(request, timeout)

    async def release_lane(
        self, topic: TopicLike, subscription: str, lane: str, *, timeout: float | None = None
    ) -> None:
        """Let a parked or paused lane go on."""
        await self.send(calls.RELEASE_LANE(any_topic(topic), subscription, lane), timeout)

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
        request = calls.SKIP_LANE(any_topic(topic), subscription, lane, query={"count": count})
        answer = await self.send(request, timeout)
        return answer.skipped_entries
