"""The half of a consumer that holds messages back from the application."""

from __future__ import annotations

import asyncio

from anabranch.client.consume.inbox.leaving import LeavingConsumer
from anabranch.client.consume.inbox.missing_topic import MissingTopic
from anabranch.client.consume.inbox.waiters import Waiters
from anabranch.client.figures import State, described
from anabranch.client.interceptors import Interceptor, InterceptorChain
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import Seconds, optional_seconds
from anabranch.errors import AlreadyClosedError, AnabranchError, ReceiveTimeoutError, TopicNotFoundError


class PausableConsumer(LeavingConsumer):
    """Hands out messages unless it is closed, paused or being moved."""

    _given_topic: str
    """The name that the application gave; other clients know a classic topic by its `persistent://` name."""

    def __init__(self, pool: ConnectionPool, interceptors: tuple[Interceptor, ...]) -> None:
        super().__init__(pool)
        self._interceptors = InterceptorChain.of(interceptors)
        self._waiting = Waiters()
        self._closed = False
        self._held_back: dict[str, None] = {}
        """Why no message is handed out although the consumer is open."""
        self._stopped = False
        """Whether the consumer is closed or holds messages back."""
        self._missing = MissingTopic(lambda: self._waiting.wake_all())

    def pause(self) -> None:
        """Hand out no message until `resume`: `receive`, iterations and runs wait.

        The consumer stays attached and keeps its share. It buffers up to `receiver_queue_size` messages, and
        takes no more from the broker then. Handlers of messages that a run has taken still run.
        """
        self._hold_back("pause")

    def resume(self) -> None:
        """Hand out messages again after `pause`."""
        self._release("pause")

    @property
    def paused(self) -> bool:
        """Whether the consumer is paused."""
        return "pause" in self._held_back

    @property
    def state(self) -> State:
        """Whether the consumer is open, paused, closed, or has failed: then receiving raises the reason."""
        if self._closed:
            return "closed"
        if self._failure is not None:
            return "failed"
        return "paused" if self.paused else "open"

    def __repr__(self) -> str:
        return described(
            self, self.state, topic=self._given_topic, subscription=getattr(self, "subscription", None)
        )

    async def _resumed(self, timeout: Seconds | None) -> None:
        """Wait while the consumer is paused; raises ReceiveTimeoutError, or AlreadyClosedError."""
        limit = optional_seconds("timeout", timeout)
        try:
            async with asyncio.timeout(limit):
                while self.paused and not self._closed:
                    await self._waiting.wait()
        except TimeoutError:
            raise ReceiveTimeoutError(f"the consumer was paused for {limit:g} s") from None
        if self._closed:
            raise AlreadyClosedError("the consumer was closed")

    async def _close_by(self, deadline: Deadline) -> None:
        """As `close`, with the deadline of the caller."""
        try:
            await self._closing.run(deadline, self._stop_and_close)
        finally:
            self._report_end()

    async def _stop_and_close(self, deadline: Deadline) -> None:
        await self._close(deadline)

    def _report_end(self) -> None:
        if self._interceptors is not None:
            self._interceptors.closed(self.topic)

    def _topic_gone(self, error: AnabranchError) -> None:
        """Note that the broker did not find the topic, or end if it refuses the role."""
        if isinstance(error, TopicNotFoundError):
            self._missing.report(error)
        else:
            self._role_refused(error)

    def _raise_trouble(self) -> None:
        """Raise the reason why no message comes: the consumer has failed, or its topic was deleted."""
        error = self._failure or self._missing.error
        if error is not None:
            raise error

    def _hold_back(self, why: str) -> None:
        self._held_back[why] = None
        self._stopped = True

    def _release(self, why: str) -> None:
        self._held_back.pop(why, None)
        self._stopped = self._closed or bool(self._held_back)
        if not self._stopped:
            self._waiting.wake_all()
