# Made by tools/generate_admin.py of the module of this name in asynchronous/: change that one.

"""Methods about subscriptions of topics of any kind."""

from __future__ import annotations

from anabranch.admin.client import calls
from anabranch.admin.client.http_client import HttpClient
from anabranch.admin.client.requests import TopicLike, any_topic, classic_topic, scalable_topic, topic_name
from anabranch.admin.models.topics import CursorPosition, SubscriptionFigures


class SubscriptionMethods(HttpClient):
    """Methods about subscriptions; the scheme of the topic decides about its kind."""

    def subscription_figures(
        self, topic: TopicLike, *, timeout: float | None = None
    ) -> dict[str, SubscriptionFigures]:
        """Return the type, consumers and backlog of each subscription of a topic of any kind.

        >>> admin.subscription_figures("orders")
        {}
        """
        if topic_name(topic, "topic").domain == "topic":
            scalable = self.send(calls.TOPIC_STATS(scalable_topic(topic)), timeout)
            return {
                name: SubscriptionFigures(type=one.type, consumers=one.consumer_count, backlog=one.backlog)
                for name, one in scalable.subscriptions.items()
            }
        classic = self.send(calls.CLASSIC_STATS(classic_topic(topic)), timeout)
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
        on = any_topic(topic)
        if scalable:
            self.send(calls.CREATE_SUBSCRIPTION(on, subscription, query={"type": kind}), timeout)
        else:
            self.send(calls.CREATE_CLASSIC_SUBSCRIPTION(on, subscription, body=start), timeout)

    def delete_subscription(
        self, topic: TopicLike, subscription: str, *, force: bool = False, timeout: float | None = None
    ) -> None:
        """Delete a subscription; InvalidConfigurationError while it has consumers, unless forced."""
        request = calls.DELETE_SUBSCRIPTION(any_topic(topic), subscription, query={"force": force})
        self.send(request, timeout)

    def seek(
        self, topic: TopicLike, subscription: str, timestamp_ms: int, *, timeout: float | None = None
    ) -> None:
        """Continue a subscription with the messages published from this time on."""
        on = any_topic(topic)
        if topic_name(topic, "topic").domain == "topic":
            self.send(calls.SEEK(on, subscription, query={"timestamp": timestamp_ms}), timeout)
        else:
            self.send(calls.RESET_CURSOR(on, subscription, str(timestamp_ms)), timeout)

    def skip_all(self, topic: TopicLike, subscription: str, *, timeout: float | None = None) -> None:
        """Acknowledge the whole backlog of a subscription.

        >>> admin.skip_all("orders", "billing")
        """
        self.send(calls.SKIP_ALL(any_topic(topic), subscription), timeout)
