"""The layout of a topic as its broker tells it: the newest one, who owns each segment, who leads the topic.

A watch keeps the cached layout in use while its connection is lost, and comes back for ever. Within one
session an older layout never replaces a newer one. What to do about a change is decided by whoever watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from anabranch.aio import Backoff, TaskRegistry, retry
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.options import log
from anabranch.errors import AnabranchError, NotConnectedError, TopicNotFoundError, UnsupportedFeatureError
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.model.routing import Router
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import exception_for

RECONNECT = Backoff(0.1, 1.0)
"""Waits of watches and registrations, which never give up; a topic that changes hands must not wait long."""


@dataclass(frozen=True)
class TopicLayout:
    """A layout together with what a client needs around it."""

    name: TopicName
    """The topic:// name the broker resolved, whatever the caller wrote."""
    layout: Layout
    owners: Mapping[int, str] = field(default_factory=dict)
    """Broker URL by segment, where the broker said so."""
    controller_url: str | None = None

    @property
    def router(self) -> Router:
        return Router(self.layout)

    def segment_topic(self, segment: Segment) -> str:
        """The name to produce to or subscribe to."""
        if segment.legacy_topic is not None:
            return segment.legacy_topic
        return str(self.name.segment_name(segment.range, segment.id))


def layout_from_wire(update: pb.CommandScalableTopicUpdate, asked: TopicName) -> TopicLayout:
    """The value in an update that carries a layout."""
    dag = update.dag
    segments = {
        info.segment_id: Segment(
            id=info.segment_id,
            range=HashRange(info.hash_start, info.hash_end),
            state=SegmentState.ACTIVE if info.state == pb.ACTIVE else SegmentState.SEALED,
            parents=tuple(info.parent_ids),
            children=tuple(info.child_ids),
            created_epoch=info.created_at_epoch,
            sealed_epoch=info.sealed_at_epoch if info.HasField("sealed_at_epoch") else -1,
            created_ms=info.created_at_ms,
            sealed_ms=info.sealed_at_ms if info.HasField("sealed_at_ms") else -1,
            bucket_splits=tuple(info.entry_bucket_splits),
            legacy_topic=info.legacy_topic_name if info.HasField("legacy_topic_name") else None,
        )
        for info in dag.segments
    }
    name = TopicName.parse(update.resolved_topic_name) if update.resolved_topic_name else asked.topic
    return TopicLayout(
        name=name,
        layout=Layout(dag.epoch, max(segments, default=-1) + 1, segments),
        owners={owner.segment_id: owner.broker_url for owner in dag.segment_brokers},
        controller_url=dag.controller_broker_url or None,
    )


class LayoutWatch:
    """Follows one topic; `changed` is called for each newer layout after the first."""

    def __init__(
        self,
        pool: ConnectionPool,
        tasks: TaskRegistry,
        topic: TopicName,
        changed: Callable[[TopicLayout], None],
        *,
        create: bool = True,
        gone: Callable[[TopicNotFoundError], None] = lambda _: None,
    ) -> None:
        """`gone` is called when the topic was deleted, and again from time to time until it is back.

        The watch makes the topic if it may, but not a second time: somebody wanted it deleted.
        """
        self._pool = pool
        self._tasks = tasks
        self._topic = topic
        self._changed = changed
        self._create = create
        self._gone = gone
        self._session = 0
        self._connection: BrokerConnection | None = None
        self._first: asyncio.Future[None] | None = None
        """While a session begins: done when its first layout is here."""
        self._found: TopicLayout | None = None
        """The newest layout of a session that begins; more may come before the first is looked at."""
        self._lost = asyncio.Event()
        self.current: TopicLayout | None = None

    async def open(self) -> TopicLayout:
        """The first layout; raises what the broker answered, such as TopicNotFoundError."""
        current = await retry(
            self._start_session,
            what=f"looking up {self._topic}",
            within_s=self._pool.operation_timeout_s,
            backoff=RECONNECT,
            rng=self._pool.rng,
        )
        self.current = current
        self._tasks.start(self._stay(), f"layout of {self._topic}")
        return current

    def close(self) -> None:
        """Tell the broker to stop; safe to call at any time."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.watches.pop(self._session, None)
            connection.send(pb.CommandScalableTopicClose(session_id=self._session))

    def updated(self, update: pb.CommandScalableTopicUpdate) -> None:
        """A layout, or a refusal, for this session."""
        if update.HasField("error") or not update.HasField("dag"):
            self._refused(exception_for(update.error, update.message))
            return
        layout = layout_from_wire(update, self._topic)
        if self._first is not None:
            self._found = layout
            if not self._first.done():
                self._first.set_result(None)
        elif self.current is None or layout.layout.epoch >= self.current.layout.epoch:
            self._take(layout)

    def connection_lost(self) -> None:
        self._connection = None
        self._refused(NotConnectedError(f"the connection was lost while looking up {self._topic}"))

    def _refused(self, error: AnabranchError) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
        self._lost.set()

    def _take(self, layout: TopicLayout) -> None:
        self.current = layout
        self._changed(layout)

    async def _start_session(self) -> TopicLayout:
        self.close()
        # Any broker of ours tells layouts. With the one that leads the topic both would be lost at once.
        connection = await self._pool.any_connection()
        if not connection.is_ours:
            connection = await self._pool.connection_for(str(self._topic))
        if not connection.machine.server_features.supports_scalable_topics:
            raise UnsupportedFeatureError("the broker does not support scalable topics")
        self._session = self._pool.next_id()
        self._first = asyncio.get_running_loop().create_future()
        self._lost.clear()
        self._connection = connection
        connection.watches[self._session] = self
        connection.send(
            pb.CommandScalableTopicLookup(
                session_id=self._session,
                topic=str(self._topic),
                create_if_missing=self._create and self.current is None,
            )
        )
        try:
            async with asyncio.timeout(self._pool.operation_timeout_s):
                await self._first
            assert self._found is not None
            return self._found
        except BaseException:
            self.close()
            raise
        finally:
            self._first = self._found = None

    async def _stay(self) -> None:
        failures = 0
        while True:
            await self._lost.wait()
            try:
                # What the first update of a new session says counts even when its epoch is lower: the topic
                # may have been deleted and made again meanwhile.
                self._take(await self._start_session())
                failures = 0
            except (AnabranchError, TimeoutError) as error:
                log.debug("layout of %s: %s", self._topic, error)
                if isinstance(error, TopicNotFoundError):
                    self._gone(error)
                await asyncio.sleep(RECONNECT.delay(failures, self._pool.rng))
                failures += 1
                self._lost.set()


async def look_up_layout(pool: ConnectionPool, topic: TopicName, *, create: bool = True) -> TopicLayout:
    """The layout of a topic now, without following it."""
    watch = LayoutWatch(pool, TaskRegistry(), topic, lambda _: None, create=create)
    try:
        return await watch._start_session()
    finally:
        watch.close()
