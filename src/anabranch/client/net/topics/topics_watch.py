"""Follows the topics of a namespace, scalable or classic.

A broker tells each scalable topic that comes or goes; after a lost connection the watch begins with the whole
list again. Classic topics are listed again and again: every Pulsar broker answers that question, so a
consumer of a pattern needs nothing else from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from anabranch.aio import TaskRegistry
from anabranch.client.decide.connecting.reconnection import ReconnectEvent
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.reconnector import Reconnector
from anabranch.client.net.topics.topic_lists import list_classic_topics
from anabranch.client.options import log
from anabranch.errors import (
    AnabranchError,
    NotConnectedError,
    OperationTimeoutError,
    UnsupportedFeatureError,
)
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import pairs
from anabranch.protocol.wire_errors import exception_for

LIST_S = 5.0
"""Pause between two questions, and so the time after which a new topic is read at the latest."""


class TopicsWatch:
    """Calls `changed` with the names of all topics, at each change after `open`."""

    def __init__(
        self,
        pool: ConnectionPool,
        namespace: str,
        filters: Mapping[str, str],
        changed: Callable[[frozenset[str]], None],
    ) -> None:
        self._pool = pool
        self._namespace = namespace
        self._filters = filters
        self._changed = changed
        self._watch_id = 0
        self._connection: BrokerConnection | None = None
        self._first: asyncio.Future[None] | None = None
        self._names: frozenset[str] = frozenset()
        self._reconnector = Reconnector(
            f"topics of {namespace}", pool.rng, self._attach, lambda error: isinstance(error, PermissionError)
        )

    async def open(self, tasks: TaskRegistry, within_s: float) -> frozenset[str]:
        """Return the topics now and follow them in `tasks`; raises the broker's refusal."""
        await self._pool.retry(self._look_up, f"listing the topics of {self._namespace}", within_s=within_s)
        self._reconnector.handle(ReconnectEvent.ATTACHED)
        tasks.start(self._reconnector.run(), self._reconnector.name)
        return self._names

    def close(self) -> None:
        """Stop following; safe to call at any time."""
        self._reconnector.handle(ReconnectEvent.ENDED)
        self._end()

    def updated(self, update: pb.CommandWatchScalableTopicsUpdate) -> None:
        """Receive the list, a change of it, or a refusal."""
        if update.HasField("error"):
            self._lose(exception_for(update.error, update.message))
            return
        if update.HasField("snapshot"):
            self._names = frozenset(update.snapshot.topics)
        else:
            self._names = (self._names - set(update.diff.removed)) | set(update.diff.added)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        elif self._first is None:
            self._changed(self._names)

    def connection_lost(self) -> None:
        self._connection = None
        self._lose(NotConnectedError("the connection was lost while listing topics"))

    def _lose(self, error: AnabranchError) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
        self._reconnector.handle(ReconnectEvent.LOST)

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.watches.pop(self._watch_id, None)
            connection.send(pb.CommandWatchScalableTopicsClose(watch_id=self._watch_id))

    async def _attach(self) -> None:
        await self._look_up()
        self._changed(self._names)

    async def _look_up(self) -> None:
        self._reconnector.handle(ReconnectEvent.BEGUN)
        self._end()
        connection = await self._pool.any_connection()
        if not connection.machine.server_features.supports_scalable_topics:
            raise UnsupportedFeatureError("the broker does not support scalable topics")
        self._watch_id = self._pool.next_id()
        self._first = asyncio.get_running_loop().create_future()
        self._connection = connection
        connection.watches[self._watch_id] = self
        connection.send(
            pb.CommandWatchScalableTopics(
                watch_id=self._watch_id, namespace=self._namespace, property_filters=pairs(self._filters)
            )
        )
        try:
            async with asyncio.timeout(self._pool.operation_timeout_s):
                await self._first
        except TimeoutError:
            self._end()
            raise OperationTimeoutError(f"{connection.peer} sent no topics of {self._namespace}") from None
        except BaseException:
            self._end()
            raise
        finally:
            self._first = None


class ClassicTopicsWatch:
    """Calls `changed` with the names of all topics, partitioned ones as a whole, when they change."""

    def __init__(
        self, pool: ConnectionPool, namespace: str, changed: Callable[[frozenset[str]], None]
    ) -> None:
        self._pool = pool
        self._namespace = namespace
        self._changed = changed
        self._names: frozenset[str] = frozenset()
        self._ended = False

    async def open(self, tasks: TaskRegistry, within_s: float) -> frozenset[str]:
        """Return the topics now and follow them in `tasks`; raises the broker's refusal."""
        self._names = await self.ask(within_s)
        tasks.start(self._follow(), f"classic topics of {self._namespace}")
        return self._names

    def close(self) -> None:
        """Stop following; safe to call at any time."""
        self._ended = True

    async def ask(self, within_s: float | None = None) -> frozenset[str]:
        """Return the topics now, without those that brokers keep for themselves."""
        names = await self._pool.retry(
            lambda: list_classic_topics(self._pool, self._namespace),
            f"listing the topics of {self._namespace}",
            within_s=within_s,
        )
        return frozenset(name for name in names if not TopicName.parse(name).local.startswith("__"))

    async def _follow(self) -> None:
        while not self._ended:
            await asyncio.sleep(LIST_S)
            try:
                names = await self.ask()
            except AnabranchError as error:
                log.warning("the topics of %s cannot be listed: %s", self._namespace, error)
                continue
            if names != self._names and not self._ended:
                self._names = names
                self._changed(names)
