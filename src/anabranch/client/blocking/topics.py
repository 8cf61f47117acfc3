"""The blocking consumer of several topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Generic, Self

from anabranch.client.blocking.portal import Handle, Portal
from anabranch.client.consume.consumers.subscription_parts import SeekTarget
from anabranch.client.consume.consumers.topics_consumer import AsyncTopicsConsumer
from anabranch.client.message import Message
from anabranch.client.options import Seconds
from anabranch.client.schema import V
from anabranch.errors import AlreadyClosedError


class TopicsConsumer(Handle, Generic[V]):
    """Reads several topics; the blocking form of AsyncTopicsConsumer.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            consumer = client.subscribe_topics(["orders", "returns"], "stock")
            consumer.acknowledge(consumer.receive_many(100, timeout=0.1))
    """

    def __init__(self, portal: Portal, twin: AsyncTopicsConsumer[V]) -> None:
        super().__init__(portal)
        self._twin = twin

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self._twin.subscription

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics that are read now."""
        return self._twin.topics

    @property
    def paused(self) -> bool:
        """Whether the consumer is paused."""
        return self._twin.paused

    def receive(self, timeout: Seconds | None = None) -> Message[V]:
        """The next message of any topic; raises ReceiveTimeoutError when none came in time."""
        return self._run("receive", lambda: self._twin.receive(timeout))

    def receive_many(self, max_messages: int, timeout: Seconds | None = None) -> list[Message[V]]:
        """Return the buffered messages of one topic, up to `max_messages`; empty if the wait timed out."""
        return self._run("receive_many", lambda: self._twin.receive_many(max_messages, timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[V]:
        try:
            return self._run("__next__", self._twin.receive)
        except AlreadyClosedError:
            raise StopIteration from None

    def acknowledge(self, message: Message[V] | Iterable[Message[V]]) -> None:
        """Acknowledge one message or several of queues."""
        self._run("acknowledge", lambda: self._twin.acknowledge(message))

    def negative_acknowledge(self, message: Message[V], *, delay: Seconds | None = None) -> None:
        """Give a message of a queue back."""
        self._run("negative_acknowledge", lambda: self._twin.negative_acknowledge(message, delay=delay))

    def reconsume_later(
        self,
        message: Message[V],
        *,
        delay: Seconds | None = None,
        properties: Mapping[str, str] | None = None,
        reason: str = "reconsumed later",
    ) -> None:
        """Send a message to its retry topic, which delivers it after `delay`."""
        self._run(
            "reconsume_later",
            lambda: self._twin.reconsume_later(message, delay=delay, properties=properties, reason=reason),
        )

    def acknowledge_cumulative(self, message: Message[V]) -> None:
        """Acknowledge all messages of the same topic that were handed out up to this one."""
        self._run("acknowledge_cumulative", lambda: self._twin.acknowledge_cumulative(message))

    def flush_acks(self, timeout: Seconds | None = None) -> None:
        """Send grouped acknowledgements and return when the brokers have confirmed them."""
        self._run("flush_acks", lambda: self._twin.flush_acks(timeout))

    def pause(self) -> None:
        """Hand out no message of any topic until `resume`."""
        self._call("pause", self._twin.pause)

    def resume(self) -> None:
        """Hand out messages again after `pause`."""
        self._call("resume", self._twin.resume)

    def seek(self, to: SeekTarget, timeout: Seconds | None = None) -> None:
        """Move the subscription of every topic to a time, or to its beginning or end.

        A message moves the subscription of its own topic.
        """
        self._run("seek", lambda: self._twin.seek(to, timeout))

    def unsubscribe(self, timeout: Seconds | None = None) -> None:
        """Delete the subscription of every topic and close this consumer, which must be the last one."""
        self._run("unsubscribe", lambda: self._twin.unsubscribe(timeout))

    def close(self, timeout: Seconds | None = None) -> None:
        """Close the consumers of all topics."""
        with suppress(AlreadyClosedError):
            self._run("close", lambda: self._twin.close(timeout))
