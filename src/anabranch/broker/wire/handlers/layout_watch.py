"""Layout watches (70-72).

A watching client gets whole layouts, never a backlog of changes: a slow client skips to the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.java_m1 import hears_of_deletion
from anabranch.broker.wire.layouts import Owners, dag_of, owners_of, synthetic_dag
from anabranch.broker.wire.services import Services
from anabranch.errors import NotAllowedError, TopicExistsError, TopicNotFoundError
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb

_LAYOUT = "layout"


class LayoutSession:
    """One open layout watch."""

    def __init__(self, connection: ServerConnection, session_id: int, name: TopicName) -> None:
        self._connection = connection
        self._session_id = session_id
        self._name = name.topic
        self._sent: tuple[int, Owners] | None = None
        self._answered = False
        """Whether the client got a layout, be it the synthetic one of a classic topic."""
        self._newest: Layout | None = None
        self._stopped = False
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        """Send each new layout and its owners from now on, unless the client has closed the session."""
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
        owners = owners_of(layout, services.controllers.home(self._name), services.directory)
        if self._sent != (layout.epoch, owners):
            self._sent = layout.epoch, owners
            self.send(dag_of(layout, owners))

    def _send_deleted(self) -> None:
        after_layout = self._sent is not None and hears_of_deletion(self._connection)
        if after_layout or not self._answered:
            self._connection.pushes.end_session((_LAYOUT, self._session_id))
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
    connection.pushes.open_session(key, session.stop)
    try:
        await _ensure_exists(services, given, create=command.create_if_missing)
    except TopicNotFoundError:
        if given.domain != "persistent":
            connection.pushes.end_session(key)
            raise
        count = await services.classic.partitions(given) or 0
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


HANDLERS = {
    pb.CommandScalableTopicLookup: CommandHandler(
        look_up_layout, refuse_with(pb.CommandScalableTopicUpdate, "session_id")
    ),
    pb.CommandScalableTopicClose: CommandHandler(close_layout),
}
