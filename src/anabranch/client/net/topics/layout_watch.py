"""The newest layout of a topic, with the owner of each segment and the broker that leads the topic.

While its connection is lost a watch keeps the last layout in use, and it attaches again for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from anabranch.aio import TaskRegistry
from anabranch.client.decide.connecting.layout_checks import SEGMENTS_MAX, fault_of_layout
from anabranch.client.decide.connecting.reconnection import ReconnectEvent
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.reconnector import Reconnector
from anabranch.client.net.topics.classic_layout import look_up_classic
from anabranch.errors import (
    AnabranchError,
    NotConnectedError,
    OperationTimeoutError,
    RemoteProtocolError,
    TopicNotFoundError,
)
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.names import TopicName
from anabranch.model.pruned import PRUNED_MAX, PrunedSegment
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import exception_for

# Producers of Apache Pulsar 5.0.0-M1 choose the segment of a key by the low half of the key's hash; those of
# later versions, and of Anabranch, by the high half. The broker itself never looks, so the producers of a
# topic must agree. The other differences of that release are missing features (docs/pulsar-5.md).
PULSAR_M1: Final = "Pulsar Server5.0.0-M1"
"""The version in CONNECTED of a broker of the release; builds between releases name more behind it."""


def routes_by_low_half(server_version: str) -> bool:
    """Return whether the official producers of a broker choose segments by the low half of a key's hash."""
    return server_version == PULSAR_M1


@dataclass(frozen=True)
class TopicLayout:
    """A layout, the name of its topic and the brokers that serve it."""

    name: TopicName
    """The topic:// name that the broker resolved from the caller's name."""
    layout: Layout
    owners: Mapping[int, str] = field(default_factory=dict)
    """Broker URL by segment id, for the segments whose owner the broker named."""
    controller_url: str | None = None
    topics: Mapping[int, str] = field(default_factory=dict)
    """By segment id the topic of Apache Pulsar that holds the segment, if a Pulsar cluster is the engine."""

    @property
    def is_classic(self) -> bool:
        """Whether this is a `persistent://` topic, which has no leader, and not one that was migrated."""
        return self.controller_url is None and all(s.is_classic for s in self.layout.segments.values())

    def segment_topic(self, segment: Segment) -> str:
        """Return the topic name that producers and consumers of the segment use."""
        held = segment.legacy_topic or self.topics.get(segment.id)
        return held or str(self.name.segment_name(segment.range, segment.id))


def layout_from_wire(
    update: pb.CommandScalableTopicUpdate, asked: TopicName, *, tls: bool = False, by_low_half: bool = False
) -> TopicLayout:
    """The layout in an update; `asked` names the topic if the broker does not. `tls` selects addresses.

    `by_low_half` says which half of a key's hash picks a segment at this broker.

    Raises RemoteProtocolError for a layout that cannot be true.
    """
    dag = update.dag
    if len(dag.segments) > SEGMENTS_MAX:
        raise _impossible(asked, f"it has {len(dag.segments)} segments; the limit is {SEGMENTS_MAX}")
    listed = {info.segment_id for info in dag.segments}
    try:
        segments = _segments_from_wire(dag, listed)
        pruned = _pruned_from_wire(dag, listed)
        name = TopicName.parse(update.resolved_topic_name) if update.resolved_topic_name else asked.topic
    except AnabranchError as error:
        raise _impossible(asked, str(error)) from error
    fault = fault_of_layout(segments) if len(segments) == len(dag.segments) else "it lists a segment twice"
    if fault is not None:
        raise _impossible(asked, fault)
    return TopicLayout(
        name=name,
        layout=Layout(dag.epoch, max(segments, default=-1) + 1, segments, pruned, by_low_half),
        owners={
            owner.segment_id: url
            for owner in dag.segment_brokers
            if (url := owner.broker_url_tls if tls else owner.broker_url)
        },
        controller_url=(dag.controller_broker_url_tls if tls else dag.controller_broker_url) or None,
        topics={info.segment_id: info.legacy_topic_name for info in dag.segments if info.keeps_range},
    )


def _impossible(asked: TopicName, fault: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the broker sent an impossible layout of {asked}: {fault}")


def _segments_from_wire(dag: pb.ScalableTopicDAG, listed: Collection[int]) -> dict[int, Segment]:
    return {
        info.segment_id: Segment(
            id=info.segment_id,
            range=HashRange(info.hash_start, info.hash_end),
            state=SegmentState.ACTIVE if info.state == pb.ACTIVE else SegmentState.SEALED,
            # Segments that the layout does not list any more were pruned.
            parents=tuple(id_ for id_ in info.parent_ids if id_ in listed),
            children=tuple(id_ for id_ in info.child_ids if id_ in listed),
            created_epoch=info.created_at_epoch,
            sealed_epoch=info.sealed_at_epoch if info.HasField("sealed_at_epoch") else -1,
            created_ms=info.created_at_ms,
            sealed_ms=info.sealed_at_ms if info.HasField("sealed_at_ms") else -1,
            bucket_splits=tuple(info.entry_bucket_splits),
            legacy_topic=_classic_topic(info),
        )
        for info in dag.segments
    }


def _classic_topic(info: pb.SegmentInfoProto) -> str | None:
    """Return the classic topic behind a segment, which may hold keys from the whole ring."""
    return info.legacy_topic_name if info.HasField("legacy_topic_name") and not info.keeps_range else None


def _pruned_from_wire(dag: pb.ScalableTopicDAG, listed: Collection[int]) -> dict[int, PrunedSegment]:
    return {
        info.segment_id: PrunedSegment(
            info.segment_id,
            HashRange(info.hash_start, info.hash_end),
            tuple(id_ for id_ in info.child_ids if id_ > info.segment_id),
            info.next_index,
        )
        for info in dag.pruned[:PRUNED_MAX]
        if info.segment_id not in listed
    }


class LayoutWatch:
    """Follows one topic; `changed` is called for each newer layout after the first."""

    def __init__(
        self,
        pool: ConnectionPool,
        topic: TopicName,
        changed: Callable[[TopicLayout], None],
        *,
        create: bool = True,
        gone: Callable[[AnabranchError], None] = lambda _: None,
    ) -> None:
        """With `create` the broker creates a missing topic, but only before the first layout: a topic that
        is missing later was deleted on purpose. Then each attempt calls `gone` until the topic is back; so
        does each attempt of a role that is refused for good.
        """
        self._pool = pool
        self.topic = self._topic = topic
        self._changed = changed
        self._create = create
        self.publishes_readable = False
        """Whether an Anabranch broker refuses the first lookup if the topic demands encryption."""
        self._gone = gone
        self._session = 0
        self._by_low_half = False
        self._connection: BrokerConnection | None = None
        self._first: asyncio.Future[None] | None = None
        """While a session begins: done when its first layout is here."""
        self._reconnector = Reconnector(f"layout of {topic}", pool.rng, self._attach, self._failed)
        self.current: TopicLayout | None = None

    async def open(self, tasks: TaskRegistry, within_s: float) -> TopicLayout:
        """Return the first layout and follow the topic in `tasks`; raises the broker's refusal."""
        what = f"looking up {self._topic}"
        current = await self._pool.retry(self.look_up, what, within_s=within_s)
        self._reconnector.handle(ReconnectEvent.ATTACHED)
        tasks.start(self._reconnector.run(), self._reconnector.name)
        return current

    def close(self) -> None:
        """Stop following; safe to call at any time."""
        self._reconnector.handle(ReconnectEvent.ENDED)
        self._end_session()

    def updated(self, update: pb.CommandScalableTopicUpdate) -> None:
        """Receive a layout, or a refusal, for this session."""
        if update.HasField("error") or not update.HasField("dag"):
            self._lose(exception_for(update.error, update.message))
            return
        try:
            tls, by_low_half = self._pool.uses_tls, self._by_low_half
            layout = layout_from_wire(update, self._topic, tls=tls, by_low_half=by_low_half)
        except RemoteProtocolError as error:
            if self._first is not None and not self._first.done():
                self._first.set_exception(error)
            raise
        if self._first is not None:
            # A topic that was deleted and created again begins with a lower epoch.
            self.current = layout
            if not self._first.done():
                self._first.set_result(None)
        elif self.current is None or layout.layout.epoch >= self.current.layout.epoch:
            self.current = layout
            self._changed(layout)

    def connection_lost(self) -> None:
        self._connection = None
        self._lose(NotConnectedError(f"the connection was lost while looking up {self._topic}"))

    def _lose(self, error: AnabranchError) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
        self._reconnector.handle(ReconnectEvent.LOST)

    def _end_session(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.watches.pop(self._session, None)
            connection.send(pb.CommandScalableTopicClose(session_id=self._session))

    async def look_up(self, *, with_pruned: bool = False) -> TopicLayout:
        """Begin a session and return its first layout, with pruned segments if asked; raises a refusal."""
        self._reconnector.handle(ReconnectEvent.BEGUN)
        self._end_session()
        # Any Anabranch broker sends layouts. Watching at the leader would lose leader and watch at once.
        connection = await self._pool.any_connection()
        if not connection.machine.server_features.supports_scalable_topics:
            return await self._look_up_partitions(connection)
        if not connection.is_ours:
            connection = await self._pool.connection_for(str(self._topic))
        self._by_low_half = routes_by_low_half(connection.machine.server_version)
        self._session = self._pool.next_id()
        self._first = asyncio.get_running_loop().create_future()
        self._connection = connection
        connection.watches[self._session] = self
        connection.send(self._lookup(connection, with_pruned=with_pruned))
        try:
            async with asyncio.timeout(self._pool.operation_timeout_s):
                await self._first
            assert self.current is not None
            return self.current
        except TimeoutError:
            self._end_session()
            limit_s = self._pool.operation_timeout_s
            raise OperationTimeoutError(
                f"{connection.peer} sent no layout of {self._topic} within {limit_s:g} s"
            ) from None
        except BaseException:
            self._end_session()
            raise
        finally:
            self._first = None

    def _lookup(self, connection: BrokerConnection, *, with_pruned: bool) -> pb.CommandScalableTopicLookup:
        is_first = self.current is None
        command = pb.CommandScalableTopicLookup(
            session_id=self._session, topic=str(self._topic), create_if_missing=self._create and is_first
        )
        if connection.is_ours and with_pruned:
            command.with_pruned = True
        if connection.is_ours and is_first and self.publishes_readable:
            command.publishes_readable = True
        return command

    async def _look_up_partitions(self, connection: BrokerConnection) -> TopicLayout:
        """Return the layout of a classic topic; a broker without layouts does not tell when it changes."""
        create = self._create and self.current is None
        layout = await look_up_classic(self._pool, connection, self._topic, create=create)
        self.current = TopicLayout(self._topic.topic, layout)
        return self.current

    async def _attach(self) -> None:
        self._changed(await self.look_up())

    def _failed(self, error: Exception) -> bool:
        if isinstance(error, TopicNotFoundError) or (
            isinstance(error, AnabranchError) and self._pool.ends(error)
        ):
            self._gone(error)
        return False


async def look_up_layout(
    pool: ConnectionPool, topic: TopicName, *, create: bool = True, with_pruned: bool = False
) -> TopicLayout:
    """Return the layout of a topic now, without following it; TopicNotFoundError if it is missing."""
    watch = LayoutWatch(pool, topic, lambda _: None, create=create)
    try:
        found = await watch.look_up(with_pruned=with_pruned)
    finally:
        watch.close()
    if not create and topic.domain == "persistent" and found.controller_url is None:
        # Brokers describe a classic topic that does not exist, too; this question is refused then.
        await look_up_classic(pool, await pool.any_connection(), topic, create=False)
    return found
