"""Methods about subscriptions of topics of any kind."""

from __future__ import annotations

from anabranch.admin.client import calls
from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import TopicLike, any_topic, classic_topic, scalable_topic, topic_name
from anabranch.admin.models.topics import CursorPosition, SubscriptionFigures


class AsyncSubscriptionMethods(AsyncHttpClient):
    """Methods about subscriptions; the scheme of the topic decides about its kind."""

    async def subscription_figures(
        self, topic: TopicLike, *, timeout: float | None = None
    ) -> dict[str, SubscriptionFigures]:
        """Return the type, consumers and backlog of each subscription of a topic of any kind.

        >>> await admin.subscription_figures("orders")
        {}
        """
        if topic_name(topic, "topic").domain == "topic":
            scalable = await self.send(calls.TOPIC_STATS(scalable_topic(topic)), timeout)
            return {
                name: SubscriptionFigures(type=one.type, consumers=one.consumer_count, backlog=one.backlog)
                for name, one in scalable.subscriptions.items()
            }
        classic = await self.send(calls.CLASSIC_STATS(classic_topic(topic)), timeout)
        return {
            name: SubscriptionFigures(
                type=one.type or None, consumers=len(one.consumers), backlog=one.msg_backlog
            )
            for name, one in classic.subscriptions.items()
        }

    async def create_subscription(
        self,
        topic: TopicLike,
        subscription: str,
        kind: str = "STREAM",
        *,
        start: str | CursorPosition = "latest",
        timeout: float | None = None,
    ) -> None:
        """Create a subscription: of this kind on a scalable topic, with this start on a classic one.

        >>> await admin.create_subscription("orders", "billing", "QUEUE")
        """
        scalable = topic_name(topic, "topic").domain == "topic"
        on = any_topic(topic)
        if scalable:
            await self.send(calls.CREATE_SUBSCRIPTION(on, subscription, query={"type": kind}), timeout)
        else:
            await self.send(calls.CREATE_CLASSIC_SUBSCRIPTION(on, subscription, body=start), timeout)

    async def delete_subscription(
        self, topic: TopicLike, subscription: str, *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Delete a subscription; InvalidConfigurationError while it has consumers, unless forced."""
        request = calls.DELETE_SUBSCRIPTION(any_topic(topic), subscription, query={"force": force})
        await self.send(request, timeout)

    async def seek(
        self, topic: TopicLike, subscription: str, timestamp_ms: int, *, timeout: float | None = None
    ) -> None:
        """Continue a subscription with the messages published from this time on."""
        on = any_topic(topic)
        if topic_name(topic, "topic").domain == "topic":
            await self.send(calls.SEEK(on, subscription, query={"timestamp": timestamp_ms}), timeout)
        else:
            await self.send(calls.RESET_CURSOR(on, subscription, str(timestamp_ms)), timeout)

    async def skip_all(self, topic: TopicLike, subscription: str, *, timeout: float | None = None) -> None:
        """Acknowledge the whole backlog of a subscription.

        >>> await admin.skip_all("orders", "billing")
        """
        await self.send(calls.SKIP_ALL(any_topic(topic), subscription), timeout)
