"""Layout watches (70-72) and namespace watches (76-78).

A watcher gets whole states, never a backlog of changes: one that is slow skips to the newest. That a topic is
deleted only our own clients are told after a layout: others give a session up for good on an error then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from anabranch.broker.cluster.directory import Directory
from anabranch.broker.wire.connection import CommandHandler, ServerConnection
from anabranch.broker.wire.handlers.lookup import topics_hash
from anabranch.broker.wire.services import Services
from anabranch.errors import MetadataError, NotAllowedError, TopicExistsError, TopicNotFoundError
from anabranch.metadata import records
from anabranch.metadata.store import Change
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.names import TopicName, parse_namespace
from anabranch.model.ranges import initial_ranges
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for

COALESCE_S = 0.05
"""Changes of a namespace within this time are told together."""
RETRY_S = 0.5
"""When a namespace is looked at again that could not be read."""

_LAYOUT, _NAMESPACE = "layout", "namespace"


class LayoutSession:
    """One open layout watch."""

    def __init__(self, connection: ServerConnection, session_id: int, name: TopicName) -> None:
        self._connection = connection
        self._session_id = session_id
        self._name = name.topic
        self._told: tuple[int, Owners] | None = None
        self._answered = False
        """Whether the client was told anything; of a classic topic it is what that looks like."""
        self._newest: Layout | None = None
        self._stopped = False
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Tell the newest layout and its owners from now on, unless the client has closed the session."""
        if not self._stopped:
            services = self._connection.services
            self._undo = [
                services.directory.watch(self._owners_changed),
                services.controllers.watch_layout(self._name, self.changed),
            ]

    def stop(self) -> None:
        self._stopped = True
        for undo in self._undo:
            undo()

    def changed(self, layout: Layout | None) -> None:
        """A newer layout is there, or the topic is gone."""
        if layout is None:
            self._tell_deleted()
            return
        if self._newest is not None and layout.epoch <= self._newest.epoch:
            return
        self._newest = layout
        self._connection.when_writable((_LAYOUT, self._session_id), self._push)

    def _owners_changed(self) -> None:
        if self._newest is not None:
            self._connection.when_writable((_LAYOUT, self._session_id), self._push)

    def _push(self) -> None:
        layout = self._newest
        if layout is None:
            return
        services = self._connection.services
        owners = owners_of(layout, services.controllers.home(self._name), services.directory)
        if self._told != (layout.epoch, owners):
            self._told = layout.epoch, owners
            self.send(dag_of(layout, owners))

    def _tell_deleted(self) -> None:
        after_layout = self._told is not None and self._connection.peer_is_ours
        if after_layout or not self._answered:
            self._connection.end_session((_LAYOUT, self._session_id))
            refused = pb.CommandScalableTopicUpdate(
                session_id=self._session_id, error=pb.TopicNotFound, message=f"{self._name} was deleted"
            )
            self._connection.send(refused)

    def send(self, dag: pb.ScalableTopicDAG) -> None:
        self._answered = True
        self._connection.send(
            pb.CommandScalableTopicUpdate(
                session_id=self._session_id, dag=dag, resolved_topic_name=str(self._name)
            )
        )


async def look_up_layout(connection: ServerConnection, command: pb.CommandScalableTopicLookup) -> None:
    services = connection.services
    given = TopicName.parse(command.topic)
    if given.domain == "non-persistent" or given.is_segment:
        raise NotAllowedError(f"{given} has no layout")
    if given.partition is not None:
        raise TopicNotFoundError(f"{given} is a partition")
    key = (_LAYOUT, command.session_id)
    session = LayoutSession(connection, command.session_id, given)
    connection.open_session(key, session.stop)
    try:
        await _existing(services, given, create=command.create_if_missing)
    except TopicNotFoundError:
        if given.domain != "persistent":
            connection.end_session(key)
            raise
        count = await services.topics.partitions(given) or 0
        session.send(synthetic_dag(given, count))
    except Exception:
        connection.end_session(key)
        raise
    # A classic topic is watched too: it may become a scalable one.
    session.watch()


async def _existing(services: Services, name: TopicName, *, create: bool) -> None:
    """Make sure that there is such a topic, which may have to be made first; TopicNotFoundError."""
    try:
        await services.records.load(name.topic)
        return
    except TopicNotFoundError:
        if not (create and name.is_scalable and await services.topics.may_create(name)):
            raise
    with suppress(TopicExistsError):
        await services.controllers.create_topic(name)


def refuse_layout(
    connection: ServerConnection, command: pb.CommandScalableTopicLookup, error: Exception
) -> None:
    connection.send(
        pb.CommandScalableTopicUpdate(
            session_id=command.session_id, error=code_for(error), message=str(error)
        )
    )


def close_layout(connection: ServerConnection, command: pb.CommandScalableTopicClose) -> None:
    connection.end_session((_LAYOUT, command.session_id))


class Owners(NamedTuple):
    """Where a topic is served."""

    leader: str | None
    segments: tuple[tuple[int, str], ...]
    """Id and address for each segment that somebody serves."""


def owners_of(layout: Layout, home: int | None, directory: Directory) -> Owners:
    """Who serves the segments of a layout and leads the topic that is at home in that store."""
    urls = {store: owner.url for store in directory.stores if (owner := directory.owner_of(store))}
    segments = (layout.segments[id_] for id_ in sorted(layout.segments))
    served = tuple((segment.id, urls[segment.store]) for segment in segments if segment.store in urls)
    return Owners(None if home is None else urls.get(home), served)


def dag_of(layout: Layout, owners: Owners) -> pb.ScalableTopicDAG:
    """A layout on the wire."""
    return pb.ScalableTopicDAG(
        epoch=layout.epoch,
        segments=[_segment(layout.segments[id_]) for id_ in sorted(layout.segments)],
        segment_brokers=[
            pb.SegmentBrokerAddress(segment_id=id_, broker_url=url) for id_, url in owners.segments
        ],
        controller_broker_url=owners.leader,
    )


def synthetic_dag(name: TopicName, partitions: int) -> pb.ScalableTopicDAG:
    """A classic topic seen as a layout: a segment per partition, routed by number and not by range."""
    topics = [name.partition_name(index) for index in range(partitions)] or [name]
    segments = [
        Segment(index, part, legacy_topic=str(topic))
        for index, (topic, part) in enumerate(zip(topics, initial_ranges(len(topics)), strict=True))
    ]
    return pb.ScalableTopicDAG(epoch=0, segments=[_segment(segment) for segment in segments])


def _segment(segment: Segment) -> pb.SegmentInfoProto:
    sealed = segment.state is SegmentState.SEALED
    return pb.SegmentInfoProto(
        segment_id=segment.id,
        hash_start=segment.range.start,
        hash_end=segment.range.end,
        state=pb.SEALED if sealed else pb.ACTIVE,
        parent_ids=segment.parents,
        child_ids=segment.children,
        created_at_epoch=segment.created_epoch,
        sealed_at_epoch=segment.sealed_epoch if sealed else None,
        created_at_ms=segment.created_ms,
        sealed_at_ms=segment.sealed_ms if sealed else None,
        legacy_topic_name=segment.legacy_topic,
        entry_bucket_splits=segment.bucket_splits,
    )


class NamespaceSession:
    """One open namespace watch: a snapshot first, then what came and went.

    One look at a time: a slow one that a later one overtook would tell what is no longer true.
    """

    def __init__(self, connection: ServerConnection, command: pb.CommandWatchScalableTopics) -> None:
        tenant, local = parse_namespace(command.namespace)
        self.namespace = f"{tenant}/{local}"
        self._connection = connection
        self._watch_id = command.watch_id
        self._filters = {(pair.key, pair.value) for pair in command.property_filters}
        self._told: dict[str, int] = {}
        self._looking = True
        self._again = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        path = records.namespace_path(records.TOPICS, self.namespace)
        self._depth = path.count("/") + 1
        self._undo: Callable[[], None] = connection.services.records.store.watch(path, self._changed)

    async def start(self, current_hash: str | None) -> None:
        """Tell all topics, unless the client says that it knows them."""
        self._told = await self._load()
        names = list(self._told)
        if self._stopped:
            return
        if current_hash is None or current_hash != topics_hash(names):
            self._connection.send(
                pb.CommandWatchScalableTopicsUpdate(
                    watch_id=self._watch_id, snapshot=pb.ScalableTopicsSnapshot(topics=names)
                )
            )
        self._looking = False
        if self._again:
            self._look()

    def stop(self) -> None:
        self._stopped = True
        self._undo()
        if self._timer is not None:
            self._timer.cancel()

    def _changed(self, change: Change) -> None:
        # Subscriptions lie deeper; they do not change which topics there are.
        if change.path.count("/") <= self._depth:
            self._look_within(COALESCE_S)

    def _look_within(self, delay_s: float) -> None:
        if self._timer is None and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._connection.when_writable((_NAMESPACE, self._watch_id), self._start_looking)

    def _start_looking(self) -> None:
        self._again = self._looking
        if not self._looking:
            self._looking = True
            self._connection.services.tasks.spawn(self._tell_all())

    async def _tell_all(self) -> None:
        try:
            await self._tell()
        except MetadataError:
            self._again = False
            self._look_within(RETRY_S)
        finally:
            self._looking = False
        if self._again:
            self._look()

    async def _tell(self) -> None:
        now = await self._load()
        if self._stopped:
            return
        before, self._told = self._told, now
        # A topic that was deleted and made again is another one of the same name.
        added = [name for name, incarnation in now.items() if before.get(name) != incarnation]
        removed = [name for name, incarnation in before.items() if now.get(name) != incarnation]
        if added or removed:
            self._connection.send(
                pb.CommandWatchScalableTopicsUpdate(
                    watch_id=self._watch_id, diff=pb.ScalableTopicsDiff(added=added, removed=removed)
                )
            )

    async def _load(self) -> dict[str, int]:
        found = await self._connection.services.records.load_all(self.namespace)
        return {
            str(name): record.incarnation
            for name, record in found
            if not record.deleted and self._filters <= record.properties.items()
        }


async def watch_namespace(connection: ServerConnection, command: pb.CommandWatchScalableTopics) -> None:
    key = (_NAMESPACE, command.watch_id)
    session = NamespaceSession(connection, command)
    connection.open_session(key, session.stop)
    try:
        await connection.services.records.load_namespace(session.namespace)
        await session.start(command.current_hash if command.HasField("current_hash") else None)
    except Exception:
        connection.end_session(key)
        raise


def refuse_namespace(
    connection: ServerConnection, command: pb.CommandWatchScalableTopics, error: Exception
) -> None:
    connection.send(
        pb.CommandWatchScalableTopicsUpdate(
            watch_id=command.watch_id, error=code_for(error), message=str(error)
        )
    )


def close_namespace(connection: ServerConnection, command: pb.CommandWatchScalableTopicsClose) -> None:
    connection.end_session((_NAMESPACE, command.watch_id))


HANDLERS = {
    pb.CommandScalableTopicLookup: CommandHandler(look_up_layout, refuse_layout),
    pb.CommandScalableTopicClose: CommandHandler(close_layout),
    pb.CommandWatchScalableTopics: CommandHandler(watch_namespace, refuse_namespace),
    pb.CommandWatchScalableTopicsClose: CommandHandler(close_namespace),
}
