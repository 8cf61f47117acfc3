"""The blocking client: where blocking producers and consumers are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar

from anabranch.client.api import AsyncClient
from anabranch.client.blocking.consumers import CheckpointConsumer, QueueConsumer, StreamConsumer
from anabranch.client.blocking.portal import Handle, Portal
from anabranch.client.blocking.producer import Producer
from anabranch.client.net.layout_watch import TopicLayout
from anabranch.client.options import MEMORY_LIMIT, Seconds
from anabranch.clock import Clock

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")


def _opening(
    opens: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, A]], wrap: Callable[[Portal, A], B]
) -> Callable[Concatenate[Client, P], B]:
    """The blocking form of a method of AsyncClient that opens a producer or consumer."""

    def opening(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> B:
        twin = self._run(opens.__name__, lambda: opens(self._twin, *args, **kwargs))
        return wrap(self._portal, twin)

    functools.update_wrapper(opening, opens)
    return opening


class Client(Handle):
    """Talks to one cluster; the blocking form of AsyncClient, with the same arguments.

    A callback such as `on_assignment` is called in the client's own thread.
    """

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout: Seconds = 30.0,
        connect_timeout: Seconds = 10.0,
        keep_alive_interval: Seconds = 30.0,
        memory_limit: int = MEMORY_LIMIT,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        """Check the arguments; nothing is connected, and no thread started, before the first call."""
        super().__init__(Portal())
        self._twin = AsyncClient(
            service_url,
            operation_timeout=operation_timeout,
            connect_timeout=connect_timeout,
            keep_alive_interval=keep_alive_interval,
            memory_limit=memory_limit,
            clock=clock,
            rng=rng,
        )
        self.service_url = service_url

    @property
    def closed(self) -> bool:
        return self._twin.closed

    create_producer = _opening(AsyncClient.create_producer, Producer)
    subscribe_stream = _opening(AsyncClient.subscribe_stream, StreamConsumer)
    subscribe_queue = _opening(AsyncClient.subscribe_queue, QueueConsumer)
    create_checkpoint_consumer = _opening(AsyncClient.create_checkpoint_consumer, CheckpointConsumer)

    def layout(self, topic: str, *, create: bool = False) -> TopicLayout:
        """The layout of a topic now, for tools and bulk readers."""
        return self._run("layout", lambda: self._twin.layout(topic, create=create))

    def close(self, timeout: Seconds | None = None) -> None:
        """Complete pending sends and acknowledgements, close all handles and end the thread.

        The client is closed after `timeout` in any case, by default after the operation timeout. Messages
        that were not stored raise in their futures, or are logged.
        """
        if not self._twin.closed:
            self._run("close", lambda: self._twin.close(timeout))
            self._portal.stop()

    def shutdown(self) -> None:
        """Close at once: pending sends fail, pending acknowledgements are lost."""
        if not self._twin.closed:
            self._run("shutdown", self._twin.shutdown)
            self._portal.stop()
