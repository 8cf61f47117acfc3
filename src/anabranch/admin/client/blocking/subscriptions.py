# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about subscriptions of topics of any kind."""

from __future__ import annotations

from anabranch.admin.client.http_client import HttpClient
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


class SubscriptionMethods(HttpClient):
    """Methods about subscriptions; the scheme of the topic decides about its kind."""

    def subscription_figures(
        self, topic: TopicLike, *, timeout: float | None = None
    ) -> dict[str, SubscriptionFigures]:
        """The type, consumers and backlog of each subscription of a topic of any kind.

        >>> admin.subscription_figures("orders")
        {}
        """
        if topic_name(topic, "topic").domain == "topic":
            scalable = self.send(get(scalable_path(topic, "stats"), ScalableStats), timeout)
            return {
                name: SubscriptionFigures(type=one.type, consumers=one.consumer_count, backlog=one.backlog)
                for name, one in scalable.subscriptions.items()
            }
        classic = self.send(get(classic_path(topic, "stats"), TopicStats), timeout)
        return {
            name: SubscriptionFigures(
                type=one.type or None, consumers=len(one.consumers), backlog=one.msg_backlog
            )
            for name, one in classic.subscriptions.items()
        }

    def create_subscription(
        self,
        topic: TopicLike,
        subscription: str,
        kind: str = "STREAM",
        *,
        start: str | CursorPosition = "latest",
        timeout: float | None = None,
    ) -> None:
        """Create a subscription: of this kind on a scalable topic, with this start on a classic one.

        >>> admin.create_subscription("orders", "billing", "QUEUE")
        """
        scalable = topic_name(topic, "topic").domain == "topic"
        path = subscription_path(topic, subscription)
        form = change("PUT", path, query={"type": kind}) if scalable else change("PUT", path, body=start)
        self.send(form, timeout)

    def delete_subscription(
        self, topic: TopicLike, subscription: str, *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Delete a subscription; InvalidConfigurationError while it has consumers, unless forced."""
        path = subscription_path(topic, subscription)
        self.send(change("DELETE", path, query={"force": force}), timeout)

    def seek(
        self, topic: TopicLike, subscription: str, timestamp_ms: int, *, timeout: float | None = None
    ) -> None:
        """Continue a subscription with the messages published from this time on."""
        if topic_name(topic, "topic").domain == "topic":
            path = subscription_path(topic, subscription, "seek")
            self.send(change("POST", path, query={"timestamp": timestamp_ms}), timeout)
        else:
            path = subscription_path(topic, subscription, "resetcursor", str(timestamp_ms))
            self.send(change("POST", path), timeout)

    def skip_all(self, topic: TopicLike, subscription: str, *, timeout: float | None = None) -> None:
        """Acknowledge the whole backlog of a subscription.

        >>> admin.skip_all("orders", "billing")
        """
        scalable = topic_name(topic, "topic").domain == "topic"
        path = subscription_path(topic, subscription, "skip-all" if scalable else "skip_all")
        self.send(change("POST", path), timeout)
