"""Layout watches (70-72): whole layouts and the brokers of their segments; a slow client skips some."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from anabranch.broker.cluster.data_plane import DataPlane
from anabranch.broker.cluster.directory import Directory
from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.attach import check_encryption
from anabranch.broker.wire.java_m1 import understands_ends
from anabranch.broker.wire.services import Services
from anabranch.errors import AnabranchError, NotAllowedError, TopicExistsError, TopicNotFoundError
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.names import TopicName
from anabranch.model.pruned import PrunedSegment
from anabranch.model.ranges import HashRange, initial_ranges
from anabranch.model.sink_names import SINK_SUBSCRIPTION, sink_of_log
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.wire_errors import code_for
from anabranch.rights.needs import Need, Right, on_topic

_LAYOUT = "layout"


class LayoutSession:
    """One open layout watch."""

    def __init__(
        self, connection: ServerConnection, session_id: int, name: TopicName, *, with_pruned: bool = False
    ) -> None:
        """With `with_pruned` the client also gets the final positions of pruned segments."""
        self._connection = connection
        self._with_pruned = with_pruned
        self._session_id = session_id
        self._name = name.topic
        self._sent: pb.ScalableTopicDAG | None = None
        self._answered = False
        """Whether the client got a layout, be it the synthetic one of a classic topic."""
        self._newest: Layout | None = None
        self._stopped = False
        self._undo: list[Callable[[], None]] = []

    @property
    def need(self) -> Need:
        return on_topic(Right.LOOK_UP, self._name)

    def watch(self) -> None:
        """Send each new layout and its owners from now on, unless the client has closed the session."""
        if not self._stopped:
            services = self._connection.services
            self._undo = [
                services.directory.watch(self._owners_changed),
                services.controllers.watch_layout(self._name, self.changed),
            ]
            if services.data_plane is not None:
                self._undo.append(services.data_plane.watch(self._owners_changed))

    def stop(self) -> None:
        self._stopped = True
        while self._undo:
            self._undo.pop()()

    def changed(self, layout: Layout | None) -> None:
        """Take a newer layout, or None when the topic is deleted."""
        if layout is None:
            self._send_deleted()
            return
        if self._newest is not None and layout.epoch <= self._newest.epoch:
            return
        self._newest = layout
        self._connection.pushes.send((_LAYOUT, self._session_id), self._push)

    def _owners_changed(self) -> None:
        if self._newest is not None:
            self._connection.pushes.send((_LAYOUT, self._session_id), self._push)

    def _push(self) -> None:
        layout = self._newest
        if layout is None:
            return
        services = self._connection.services
        home = services.controllers.home(self._name)
        dag = dag_of(layout, home, services.directory, tls=self._connection.is_tls)
        if services.data_plane is not None:
            name_topics(dag, self._name, services.data_plane)
        if self._with_pruned:
            dag.pruned.extend(_pruned(segment) for segment in layout.pruned.values())
        if self._sent != dag:
            self._sent = dag
            self.send(dag)

    def _send_deleted(self) -> None:
        after_layout = self._sent is not None and understands_ends(self._connection)
        if after_layout or not self._answered:
            self._connection.pushes.end_session((_LAYOUT, self._session_id))
            self.refuse(TopicNotFoundError(f"{self._name} was deleted"))

    def refuse(self, error: AnabranchError) -> None:
        update = pb.CommandScalableTopicUpdate(session_id=self._session_id)
        update.error, update.message = code_for(error), str(error)
        self._connection.send(update)

    def send(self, dag: pb.ScalableTopicDAG) -> None:
        if self._stopped:
            return
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
        raise TopicNotFoundError(f"{given} is a partition; open {given.partitioned_topic} instead")
    if command.publishes_readable:
        check_encryption(services, given)
    key, create = (_LAYOUT, command.session_id), command.create_if_missing
    session = LayoutSession(connection, command.session_id, given, with_pruned=command.with_pruned)
    connection.pushes.open_session(key, session)
    try:
        try:
            await _ensure_log_exists(services, given, create=create)
            await _ensure_exists(services, given, create=create)
        except TopicNotFoundError:
            if given.domain != "persistent":
                raise
            session.send(synthetic_dag(given, await _partitions(services, given, create=create)))
    except Exception:
        connection.pushes.end_session(key)
        raise
    # A classic topic is watched too, because it may be migrated to a scalable one.
    session.watch()


async def _partitions(services: Services, name: TopicName, *, create: bool) -> int:
    """The number of partitions of a classic topic, here or at the data plane; 0 without any.

    With `create` a missing topic gets the partitions that its namespace gives to new topics. Raises
    NotFoundError if there is no namespace, or if it does not let clients create topics.
    """
    if services.data_plane is None:
        topics = services.classic
        count = await (topics.partitions_for_use(name) if create else topics.partitions(name))
        if create and count is None:
            await services.records.namespaces.load_namespace(name.namespace_name)
            if not await topics.is_usable(name):
                raise TopicNotFoundError(f"{name} does not exist")
        return count or 0
    with suppress(TopicNotFoundError):
        return await services.data_plane.partitions(name)
    return 0


async def _ensure_exists(services: Services, name: TopicName, *, create: bool) -> None:
    """Return if the topic exists or was created now; else raise TopicNotFoundError."""
    try:
        await services.records.load(name.topic)
        return
    except TopicNotFoundError:
        if not (create and name.is_scalable and await services.classic.may_create(name)):
            raise
    with suppress(TopicExistsError):
        await services.controllers.create_topic(name)


async def _ensure_log_exists(services: Services, name: TopicName, *, create: bool) -> None:
    """Make the log of a sink at the data plane on first use; other classic topics are the cluster's own.

    The cluster must create no topic by itself, because a client could then revive the topic of a segment.
    """
    plane = services.data_plane
    if plane is None or not create or sink_of_log(str(name)) is None:
        return
    if await services.classic.may_create(name):
        await plane.create_log(name, SINK_SUBSCRIPTION)


def close_layout(connection: ServerConnection, command: pb.CommandScalableTopicClose) -> None:
    connection.pushes.end_session((_LAYOUT, command.session_id))


def dag_of(
    layout: Layout, home: int | None, directory: Directory, *, tls: bool = False
) -> pb.ScalableTopicDAG:
    """Encode a layout, the brokers that serve its segments, and its leader: the owner of the store `home`.

    A client that came by `tls` gets no plain address of the leader, because some clients would go there.
    """
    owners = {store: owner for store in directory.stores if (owner := directory.owner_of(store))}
    leader = None if home is None else owners.get(home)
    segments = [layout.segments[id_] for id_ in sorted(layout.segments)]
    return pb.ScalableTopicDAG(
        epoch=layout.epoch,
        segments=[_segment(segment) for segment in segments],
        segment_brokers=[
            pb.SegmentBrokerAddress(
                segment_id=segment.id, broker_url=owner.url, broker_url_tls=owner.url_tls or None
            )
            for segment in segments
            if (owner := owners.get(segment.store))
        ],
        controller_broker_url=None if leader is None or tls else leader.url or None,
        controller_broker_url_tls=None if leader is None else leader.url_tls or None,
    )


def name_topics(dag: pb.ScalableTopicDAG, name: TopicName, plane: DataPlane) -> None:
    """Name the topics that hold the segments, and the servers that are known to hold those topics."""
    del dag.segment_brokers[:]
    for info in dag.segments:
        if not info.HasField("legacy_topic_name"):
            segment = name.segment_name(HashRange(info.hash_start, info.hash_end), info.segment_id)
            info.legacy_topic_name, info.keeps_range = str(plane.topic_of(segment)), True
        found = plane.known_address(TopicName.parse(info.legacy_topic_name))
        if found is not None and found.url:
            dag.segment_brokers.add(
                segment_id=info.segment_id, broker_url=found.url, broker_url_tls=found.url_tls or None
            )


def synthetic_dag(name: TopicName, partitions: int) -> pb.ScalableTopicDAG:
    """Encode a classic topic as a layout: a segment per partition, routed by number and not by range."""
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


def _pruned(segment: PrunedSegment) -> pb.PrunedSegmentProto:
    return pb.PrunedSegmentProto(
        segment_id=segment.id,
        hash_start=segment.range.start,
        hash_end=segment.range.end,
        child_ids=segment.children,
        next_index=segment.next_index,
    )


HANDLERS = {
    pb.CommandScalableTopicLookup: CommandHandler(
        look_up_layout, refuse_with(pb.CommandScalableTopicUpdate, "session_id")
    ),
    pb.CommandScalableTopicClose: CommandHandler(close_layout),
}
