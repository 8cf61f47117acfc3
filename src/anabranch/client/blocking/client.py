"""The blocking client: where blocking producers and consumers are made."""

from __future__ import annotations

import atexit
import functools
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack
from weakref import WeakKeyDictionary, WeakSet

from anabranch.client.api import AsyncClient
from anabranch.client.blocking.consumers import CheckpointConsumer
from anabranch.client.blocking.portal import END_S, Handle, Portal
from anabranch.client.blocking.producer import Producer
from anabranch.client.blocking.subscribers import QueueConsumer, StreamConsumer
from anabranch.client.blocking.topics import TopicsConsumer
from anabranch.client.consume.consumers.subscription_parts import end_runs
from anabranch.client.figures import ClientFigures
from anabranch.client.net.closing import Deadline, close_all
from anabranch.client.net.topics.layout_watch import TopicLayout
from anabranch.client.net.topics.schemas import TopicSchema
from anabranch.client.options import MEMORY_LIMIT, ClientArguments, Seconds, log, optional_seconds

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B", bound=Handle)

ABANDONED_S = 5.0
"""How long a client that the application did not close may take to complete its messages."""


def _opening(
    opens: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, A]], wrap: Callable[[Portal, A], B]
) -> Callable[Concatenate[Client, P], B]:
    """The blocking form of a method of AsyncClient that opens a producer or consumer."""

    def opening(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> B:
        twin = self._run(opens.__name__, lambda: opens(self._twin, *args, **kwargs))
        handle = wrap(self._portal, twin)
        handle.opened_by = self
        if isinstance(handle, Producer):
            self._producers.add(handle)
        return handle

    functools.update_wrapper(opening, opens)
    return opening


class Client(Handle):
    """Talks to one cluster; the blocking form of AsyncClient, with the same arguments.

    A callback such as `on_assignment` is called in the client's own thread.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            client.create_producer("orders").send(b"one tea", key="alice")
    """

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout: Seconds = 30.0,
        connect_timeout: Seconds = 10.0,
        keep_alive_interval: Seconds = 30.0,
        memory_limit: int = MEMORY_LIMIT,
        **more: Unpack[ClientArguments],
    ) -> None:
        """Check the arguments; nothing is connected, and no thread started, before the first call."""
        super().__init__(Portal())
        self._twin = AsyncClient(
            service_url,
            operation_timeout=operation_timeout,
            connect_timeout=connect_timeout,
            keep_alive_interval=keep_alive_interval,
            memory_limit=memory_limit,
            **more,
        )
        self.service_url = service_url
        self._producers: WeakSet[Producer[Any]] = WeakSet()
        abandon = functools.partial(_abandon, self._portal, self._twin, self._producers)
        self._abandoned = weakref.finalize(self, abandon)
        self._abandoned.atexit = False
        _abandoning[self] = abandon

    @property
    def closed(self) -> bool:
        """Whether `close` or `shutdown` was called; other calls raise AlreadyClosedError then."""
        return self._twin.closed

    @property
    def stats(self) -> ClientFigures:
        """The producers and consumers of this client now, with their states and numbers."""

        async def look() -> ClientFigures:
            return self._twin.stats

        return self._run("stats", look)

    create_producer = _opening(AsyncClient.create_producer, Producer)
    subscribe_stream = _opening(AsyncClient.subscribe_stream, StreamConsumer)
    subscribe_queue = _opening(AsyncClient.subscribe_queue, QueueConsumer)
    subscribe_topics = _opening(AsyncClient.subscribe_topics, TopicsConsumer)
    create_checkpoint_consumer = _opening(AsyncClient.create_checkpoint_consumer, CheckpointConsumer)

    def layout(self, topic: str, *, create: bool = False, with_pruned: bool = False) -> TopicLayout:
        """The layout of a topic now, for tools and bulk readers."""
        return self._run("layout", lambda: self._twin.layout(topic, create=create, with_pruned=with_pruned))

    def topic_schema(self, topic: str, *, version: bytes | int | None = None) -> TopicSchema | None:
        """A version of the topic's registered schema, the newest by default; None without such a schema.

        The version is the number that `anabranch schema list` shows, or the bytes that messages carry.
        """
        return self._run("topic_schema", lambda: self._twin.topic_schema(topic, version=version))

    def topics(self, namespace: str, *, classic: bool = False) -> list[str]:
        """The full names of the scalable topics, or of the classic ones, of a namespace `tenant/name`."""
        return self._run("topics", lambda: self._twin.topics(namespace, classic=classic))

    def close(self, timeout: Seconds | None = None) -> None:
        """Complete pending sends and acknowledgements, close all handles and end the thread.

        The client is closed after `timeout` in any case, by default after the operation timeout. Messages
        that were not stored raise in their futures, or are logged.
        """
        limit = optional_seconds("timeout", timeout)
        self._close_within("close", self._twin.operation_timeout_s if limit is None else limit)

    def shutdown(self) -> None:
        """Close at once: pending sends fail, pending acknowledgements may be lost."""
        self._close_within("shutdown", 0.0)

    def _close_within(self, method: str, limit_s: float) -> None:
        if not self._twin.closed:
            try:
                work = functools.partial(_close, self._twin, self._producers, limit_s)
                self._portal.run(f"Client.{method}", work, limit_s + END_S)
            finally:
                self._abandoned.detach()
                thread = self._portal.stop()
                if thread is not None:
                    # A callback of the application may keep the thread busy.
                    thread.join(END_S + 1.0)


async def _close(twin: AsyncClient, producers: Iterable[Producer[Any]], limit_s: float) -> None:
    deadline = Deadline(limit_s)
    try:
        await end_runs(twin.life.consumers, deadline)
        # The messages of callers go to their twins before the twins close.
        await close_all([producer.outbox for producer in producers], deadline)
    finally:
        await twin.close(deadline.left_s)


def _abandon(portal: Portal, twin: AsyncClient, producers: Iterable[Producer[Any]]) -> None:
    """Close a client that the application has dropped; called by the garbage collector, in any thread."""
    if not twin.closed and portal.started:
        log.warning("the client of %s was not closed", twin.service_url)
        thread = portal.stop(lambda: _close(twin, producers, ABANDONED_S))
        _ending[:] = [other for other in (*_ending, thread) if other is not None and other.is_alive()]


_ending: list[threading.Thread] = []
"""Threads of dropped clients."""


def _join_at_exit() -> None:
    """Let open clients complete their messages for a moment before the interpreter ends."""
    for abandon in list(_abandoning.values()):
        # Python has ended the finalizers already, which would do the same.
        abandon()
    for thread in _ending:
        thread.join(ABANDONED_S + 1.0)


_abandoning: WeakKeyDictionary[Client, Callable[[], None]] = WeakKeyDictionary()
"""How to close each client that the application still has, without keeping the client."""
atexit.register(_join_at_exit)
