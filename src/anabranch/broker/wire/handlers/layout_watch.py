"""Layout watches (70-72): whole layouts and the brokers of their segments; a slow client skips some."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from anabranch.broker.engine.port import Engine, LogLocation
from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.attach import check_encryption
from anabranch.broker.wire.java_m1 import understands_ends
from anabranch.broker.wire.services import Services
from anabranch.errors import AnabranchError, NotAllowedError, TopicExistsError, TopicNotFoundError
from anabranch.metadata.broker_record import BrokerRecord
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.names import TopicName
from anabranch.model.pruned import PrunedSegment
from anabranch.model.ranges import initial_ranges
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
        """Whether the client got a layout, which may be the synthetic one of a classic topic."""
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
                services.engine.watch(self._owners_changed),
            ]

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
        leader = None if home is None else services.directory.owner_of(home)
        dag = dag_of(layout, self._name, services.engine, leader, tls=self._connection.is_tls)
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
            if create:
                await services.engine.ensure_sink_log(given, services.classic.may_create)
            await _ensure_exists(services, given, create=create)
        except TopicNotFoundError:
            if given.domain != "persistent":
                raise
            count = await services.engine.partitions_to_watch(given, create=create)
            session.send(synthetic_dag(given, count))
    except Exception:
        connection.pushes.end_session(key)
        raise
    # A classic topic is watched too, because it may be migrated to a scalable one.
    session.watch()


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


def close_layout(connection: ServerConnection, command: pb.CommandScalableTopicClose) -> None:
    connection.pushes.end_session((_LAYOUT, command.session_id))


def dag_of(
    layout: Layout, name: TopicName, engine: Engine, leader: BrokerRecord | None, *, tls: bool = False
) -> pb.ScalableTopicDAG:
    """Encode the layout of a topic, where the engine holds its segments, and the address of its leader.

    A client that came by `tls` gets no plain address of the leader, because some clients would go there.
    """
    dag = pb.ScalableTopicDAG(
        epoch=layout.epoch,
        controller_broker_url=None if leader is None or tls else leader.url or None,
        controller_broker_url_tls=None if leader is None else leader.url_tls or None,
    )
    for id_ in sorted(layout.segments):
        found = engine.locate(name, layout.segments[id_])
        dag.segments.append(_segment(layout.segments[id_], found))
        if found.address is not None:
            url, url_tls = found.address
            dag.segment_brokers.add(segment_id=id_, broker_url=url, broker_url_tls=url_tls or None)
    return dag


def synthetic_dag(name: TopicName, partitions: int) -> pb.ScalableTopicDAG:
    """Encode a classic topic as a layout: a segment per partition, routed by number and not by range."""
    topics = [name.partition_name(index) for index in range(partitions)] or [name]
    segments = [
        Segment(index, part, legacy_topic=str(topic))
        for index, (topic, part) in enumerate(zip(topics, initial_ranges(len(topics)), strict=True))
    ]
    infos = [_segment(segment, LogLocation(None, segment.legacy_topic)) for segment in segments]
    return pb.ScalableTopicDAG(epoch=0, segments=infos)


def _segment(segment: Segment, found: LogLocation) -> pb.SegmentInfoProto:
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
        legacy_topic_name=found.topic,
        keeps_range=found.keeps_range or None,
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
