"""The side of every consumer that applications see: receiving, pausing and closing.

The public consumers are thin. What they do is done by their parts, which are described where they are chosen:
`stream_parts.py`, `queue_parts.py` and `checkpoint_parts.py`.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, Self, TypeVar

from anabranch.client.consume.context import ConsumerContext
from anabranch.client.consume.inbox.inbox import Inbox
from anabranch.client.consume.segments.segments import ConsumedSegments
from anabranch.client.figures import ConsumerFigures, State, described
from anabranch.client.message import Message
from anabranch.client.net.closing import Deadline
from anabranch.client.options import Seconds, positive
from anabranch.errors import AlreadyClosedError, ReceiveTimeoutError

T = TypeVar("T")


class ConsumerParts(Protocol):
    """The parts of a consumer, as far as all kinds have them."""

    context: ConsumerContext
    inbox: Inbox[Any]

    async def open(self) -> None: ...
    async def close_by(self, deadline: Deadline) -> None: ...


class ReceivingConsumer(Generic[T]):
    """Receives, and holds the parts of one consumer of a topic."""

    def __init__(self, parts: ConsumerParts) -> None:
        self.name = parts.context.name
        """The consumer's identity: registering under it within the grace time brings the same share."""
        self.parts = parts
        self._context, self._inbox = parts.context, parts.inbox
        self._close_by = parts.close_by

    @property
    def topic(self) -> str:
        """The name of the topic that the broker resolved."""
        return self._context.topic

    # A message that waits in the run is handed out here, without a call of the inbox: applications receive
    # one message after another, and another call would cost as much as the rest of the method.

    async def receive(self, timeout: Seconds | None = None) -> Message[T]:
        """The next message; raises ReceiveTimeoutError when none came in time.

        Without a `timeout` the call waits for a message for ever. It raises AlreadyClosedError when the
        consumer is closed meanwhile, and TopicNotFoundError while the topic is deleted. A cancelled call has
        taken no message.
        """
        inbox = self._inbox
        if not inbox.run or inbox.stopped:
            await inbox.next(timeout)
        return inbox.run.pop()

    async def receive_many(self, max_messages: int, timeout: Seconds | None = None) -> list[Message[T]]:
        """Wait for a message and return all that arrived, up to `max_messages`; empty after the timeout."""
        positive("max_messages", max_messages)
        inbox = self._inbox
        try:
            await inbox.next(timeout)
        except ReceiveTimeoutError:
            return []
        return inbox.take(max_messages)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        inbox = self._inbox
        if not inbox.run or inbox.stopped:
            try:
                await inbox.next(None)
            except AlreadyClosedError:
                raise StopAsyncIteration from None
        return inbox.run.pop()

    @property
    def bad_entry_count(self) -> int:
        """Entries so far that could not be decoded; `bad_entries` says what became of them."""
        return self._inbox.bad.count

    def pause(self) -> None:
        """Hand out no message until `resume`: `receive`, iterations and runs wait.

        The consumer stays attached and keeps its share. It buffers up to `receiver_queue_size` messages, and
        takes no more from the broker then. Handlers of messages that a run has taken still run.
        """
        self._inbox.hold_back("pause")

    def resume(self) -> None:
        """Hand out messages again after `pause`."""
        self._inbox.release("pause")

    @property
    def paused(self) -> bool:
        """Whether the consumer is paused."""
        return self._inbox.paused

    @property
    def state(self) -> State:
        """Whether the consumer is open, paused, closed, or has failed: then receiving raises the reason."""
        return self._inbox.state

    def __repr__(self) -> str:
        context = self._context
        return described(self, self.state, topic=context.given_topic, subscription=context.subscription)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        # A coroutine that is destroyed can wait for nothing.
        if kind is not GeneratorExit:
            await self.close()

    async def close(self, timeout: Seconds | None = None) -> None:
        """End waiting receives and iterations, confirm acknowledgements and leave the topic.

        The consumer is closed after `timeout` in any case, by default after the operation timeout.
        Acknowledgements that the broker did not confirm are logged. A cancelled call closes at once.
        """
        await self._close_by(Deadline(self._context.limit_s(timeout)))


def figures_of(context: ConsumerContext, inbox: Inbox[Any], segments: ConsumedSegments) -> ConsumerFigures:
    """Return the numbers of a consumer now, for `AsyncClient.stats`."""
    sources = list(segments.sources.values())
    waiting = sum(entry.wanted.bit_count() for source in sources for entry in source.entries)
    return ConsumerFigures(
        context.given_topic,
        context.subscription,
        context.name,
        inbox.state,
        sum(source.connected for source in sources),
        inbox.number - len(inbox.run),
        waiting + len(inbox.run),
        inbox.bad.count,
    )
