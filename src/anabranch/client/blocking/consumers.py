"""The blocking consumers, which take many messages from the loop's thread at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from anabranch.client.blocking.portal import Handle, Portal
from anabranch.client.blocking.taken import TakenMessages
from anabranch.client.consume.consumers.checkpoint_consumer import AsyncCheckpointConsumer
from anabranch.client.consume.consumers.consumer import ReceivingConsumer
from anabranch.client.decide.consuming.look_ahead import next_look_ahead
from anabranch.client.figures import State
from anabranch.client.message import Message
from anabranch.client.options import Seconds, optional_seconds, positive
from anabranch.client.schema import V
from anabranch.errors import AlreadyClosedError, ReceiveTimeoutError
from anabranch.model.checkpoint import Checkpoint

C = TypeVar("C", bound=ReceivingConsumer[Any])
R = TypeVar("R")


class Consumer(Generic[C, V]):
    """Receiving and iterating, as all blocking consumers do; `C` is the type of the asyncio twin.

    The other base class of each consumer is `Handle`, which runs calls in the thread of the loop.
    """

    if TYPE_CHECKING:

        def _run(self, method: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R: ...
        def _call(self, method: str, function: Callable[[], R]) -> R: ...

    def __init__(self, twin: C) -> None:
        self._twin = twin
        self._inbox = twin.parts.inbox
        self._taken: TakenMessages[V] = TakenMessages()
        """Messages that later calls find without crossing threads."""
        self._next_single = self._taken.singles.popleft
        self._lock = threading.Lock()
        self._ahead, self._found, self._taken_at = 1, 1, time.monotonic()

    @property
    def topic(self) -> str:
        """The name the broker resolved."""
        return self._twin.topic

    @property
    def name(self) -> str:
        """The consumer's identity in its subscription or group."""
        return self._twin.name

    @property
    def bad_entry_count(self) -> int:
        """Entries so far that could not be decoded."""
        return self._twin.bad_entry_count

    def receive(self, timeout: Seconds | None = None) -> Message[V]:
        """The next message; raises ReceiveTimeoutError when none arrives in time.

        Without a `timeout` the call waits for a message for ever. It raises AlreadyClosedError when the
        consumer is closed meanwhile, and TopicNotFoundError while the topic is deleted.
        """
        self._await_resume("receive", timeout)
        found = self._at_hand("receive", 1)
        return found[0] if found else self._wait("receive", lambda: self._twin.receive(timeout))

    def receive_many(self, max_messages: int, timeout: Seconds | None = None) -> list[Message[V]]:
        """Wait for a message, then take all that arrived, up to `max_messages`; empty after `timeout`."""
        positive("max_messages", max_messages)
        optional_seconds("timeout", timeout)
        try:
            self._await_resume("receive_many", timeout)
        except ReceiveTimeoutError:
            return []
        found = self._at_hand("receive_many", max_messages)
        return found or self._wait("receive_many", lambda: self._twin.receive_many(max_messages, timeout))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[V]:
        try:
            if self._inbox.stopped:
                self._await_resume("__next__", None)
            return self._next_single()
        except IndexError:
            pass
        except AlreadyClosedError:
            raise StopIteration from None
        try:
            found = self._at_hand("__next__", 1)
            return found[0] if found else self._wait("__next__", self._twin.receive)
        except AlreadyClosedError:
            raise StopIteration from None

    def pause(self) -> None:
        """Hand out no message until `resume`: `receive`, iterations and runs wait.

        The consumer stays attached and keeps its share. It buffers up to `receiver_queue_size` messages, and
        takes no more from the broker then. Handlers of messages that a run has taken still run.
        """
        self._call("pause", self._twin.pause)

    def resume(self) -> None:
        """Hand out messages again after `pause`."""
        self._call("resume", self._twin.resume)

    @property
    def state(self) -> State:
        """Whether the consumer is open, paused, closed, or has failed."""
        return self._twin.state

    @property
    def paused(self) -> bool:
        """Whether the consumer is paused."""
        return self._twin.paused

    def _take(self, what: str, limit: int) -> None:
        now = time.monotonic()
        most = max(limit, next_look_ahead(self._ahead, self._found, now - self._taken_at))
        self._taken.put(self._call(what, lambda: self._inbox.poll(most)))
        if self._taken:
            self._ahead, self._found, self._taken_at = most, len(self._taken), now

    def _wait(self, what: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Wait for messages; the wait is not counted as time that the application needed."""
        try:
            return self._run(what, work)
        finally:
            self._taken_at = time.monotonic()

    def _at_hand(self, what: str, limit: int) -> list[Message[V]]:
        """Up to `limit` messages that have arrived, in order, perhaps none; callers take turns."""
        with self._lock:
            if not self._taken:
                self._take(what, limit)
            return self._taken.pop(limit)

    def _await_resume(self, what: str, timeout: Seconds | None) -> None:
        if self._twin.paused:
            self._run(what, lambda: self._inbox.resumed(timeout))

    def close(self, timeout: Seconds | None = None) -> None:
        """End waiting receives and iterations, confirm acknowledgements and leave the topic.

        The consumer is closed after `timeout` in any case, by default after the operation timeout.
        """
        with suppress(AlreadyClosedError):
            self._run("close", lambda: self._twin.close(timeout))
        self._taken.clear()


class CheckpointConsumer(Consumer[AsyncCheckpointConsumer[V], V], Handle):
    """Reads a topic from a checkpoint on; the blocking form of AsyncCheckpointConsumer.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            reader = client.create_checkpoint_consumer("orders", start=Checkpoint.earliest())
            messages = reader.receive_many(100, timeout=0.1)
            kept = reader.checkpoint().to_bytes()
    """

    def __init__(self, portal: Portal, twin: AsyncCheckpointConsumer[V]) -> None:
        # Pyright infers the type of the values from this signature only.
        Handle.__init__(self, portal)
        super().__init__(twin)

    def checkpoint(self) -> Checkpoint:
        """The position after the last message handed out; reading from it continues with the next message."""
        with self._lock:
            waiting = self._taken.waiting()

        async def look() -> Checkpoint:
            return self._twin.parts.checkpoint_before(waiting)

        try:
            return self._run("checkpoint", look)
        except AlreadyClosedError:
            # The client is closed, and nothing moves the position any more.
            return self._twin.parts.checkpoint_before(waiting)

    def commit(self, checkpoint: Checkpoint | None = None, timeout: Seconds | None = None) -> None:
        """Tell the group that this checkpoint, or the current one, is stored by the application.

        A member that gets a bucket of this one continues at the last committed position. From the first
        commit on, members share segments by buckets. Raises ConsumerBusyError, and commits nothing, if
        another member got a bucket meanwhile: it receives what this one received since its last commit.
        """
        given = self.checkpoint() if checkpoint is None else checkpoint
        self._run("commit", lambda: self._twin.commit(given, timeout))
