"""Methods about subscriptions of topics of any kind."""

from __future__ import annotations

from anabranch.admin.client.async_http import AsyncHttpClient
from anabranch.admin.client.requests import (
    TopicLike,
    change,
    classic_path,
    get,
    scalable_path,
    subscription_path,
    topic_name,
)
from anabranch.admin.models.scalable import ScalableStats
from anabranch.admin.models.topics import CursorPosition, SubscriptionFigures, TopicStats


class AsyncSubscriptionMethods(AsyncHttpClient):
    """Methods about subscriptions; the scheme of the topic decides about its kind."""

    async def subscription_figures(
        self, topic: TopicLike, *, timeout: float | None = None
    ) -> dict[str, SubscriptionFigures]:
        """The type, consumers and backlog of each subscription of a topic of any kind.

        >>> await admin.subscription_figures("orders")
        {}
        """
        if topic_name(topic, "topic").domain == "topic":
            scalable = await self.send(get(scalable_path(topic, "stats"), ScalableStats), timeout)
            return {
                name: SubscriptionFigures(type=one.type, consumers=one.consumer_count, backlog=one.backlog)
                for name, one in scalable.subscriptions.items()
            }
        classic = await self.send(get(classic_path(topic, "stats"), TopicStats), timeout)
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
        path = subscription_path(topic, subscription)
        form = change("PUT", path, query={"type": kind}) if scalable else change("PUT", path, body=start)
        await self.send(form, timeout)

    async def delete_subscription(
        self, topic: TopicLike, subscription: str, *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Delete a subscription; InvalidConfigurationError while it has consumers, unless forced."""
        path = subscription_path(topic, subscription)
        await self.send(change("DELETE", path, query={"force": force}), timeout)

    async def seek(
        self, topic: TopicLike, subscription: str, timestamp_ms: int, *, timeout: float | None = None
    ) -> None:
        """Continue a subscription with the messages published from this time on."""
        if topic_name(topic, "topic").domain == "topic":
            path = subscription_path(topic, subscription, "seek")
            await self.send(change("POST", path, query={"timestamp": timestamp_ms}), timeout)
        else:
            path = subscription_path(topic, subscription, "resetcursor", str(timestamp_ms))
            await self.send(change("POST", path), timeout)

    async def skip_all(self, topic: TopicLike, subscription: str, *, timeout: float | None = None) -> None:
        """Acknowledge the whole backlog of a subscription.

        >>> await admin.skip_all("orders", "billing")
        """
        scalable = topic_name(topic, "topic").domain == "topic"
        path = subscription_path(topic, subscription, "skip-all" if scalable else "skip_all")
        await self.send(change("POST", path), timeout)
