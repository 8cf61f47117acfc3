"""The registration of a consumer with the leader of its topic, which assigns segments to it.

After a lost connection the registration is made again under the same name, so that the leader finds the
consumer's share. It ends when another consumer has the name, or the subscription was deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from google.protobuf.message import Message as ProtoMessage

from anabranch.aio import TaskRegistry, is_transient
from anabranch.client.decide.connecting.layout_checks import ID_MAX, SEGMENTS_MAX
from anabranch.client.decide.connecting.reconnection import ReconnectEvent
from anabranch.client.decide.connecting.refused_roles import is_refused_role
from anabranch.client.net.connection import BrokerConnection, address_of
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.reconnector import Reconnector
from anabranch.client.net.topics.classic_layout import ClassicTopicError
from anabranch.client.net.topics.layout_watch import look_up_layout
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    ConsumerBusyError,
    LayoutError,
    NotConnectedError,
    RemoteProtocolError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnsupportedFeatureError,
)
from anabranch.model.assignment import UNCOUNTED, AssignedSegment, Assignment
from anabranch.model.drains import Ranges
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True)
class GroupReport:
    """How far a member of a checkpoint group has read."""

    finished: Iterable[int] = ()
    """The segments that it has read to their end."""
    parts: Mapping[int, Ranges] = field(default_factory=dict)
    """The slots that it has read to the end, of segments that it has read in part."""
    positions: bytes = b""
    """A checkpoint of what it has committed, and of its starts."""
    generation: int = UNCOUNTED
    """Of the assignment that the positions belong to."""
    commits: bool = False
    """Whether the application commits positions."""
    releases: bool = False
    """Whether the positions cover all that it read of the slots that leave it."""
    claims: int | None = None
    """The generation since which it waits for slots of other members; None while it may wait on."""


@dataclass(frozen=True, slots=True)
class RegistrationOptions:
    """The consumer that registers, and its subscription."""

    topic: TopicName
    subscription: str
    consumer_name: str
    kind: pb.ScalableConsumerType.ValueType
    initial_position: pb.CommandSubscribe.InitialPosition.ValueType
    report: Callable[[], GroupReport] | None = None
    """In a checkpoint group: returns how far this consumer has read."""


class Registration:
    """Registers one consumer, and passes each new assignment to `assigned`.

    `refused` is called once, when the leader refuses an open consumer for good. `gone` is called for each
    attempt that does not find the topic; a later assignment shows that the topic is back.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        request: RegistrationOptions,
        assigned: Callable[[Assignment], None],
        refused: Callable[[AnabranchError], None],
        *,
        gone: Callable[[AnabranchError], None] = lambda _: None,
    ) -> None:
        self.opened_in: int | None = None
        """The incarnation of the topic whose subscription is open."""
        self._pool = pool
        self._request = request
        self._assigned = assigned
        self._refused = refused
        self._gone = gone
        self._instance = pool.rng.getrandbits(64)
        """Distinguishes this consumer from other consumers of its name."""
        self._found: TopicName | None = None
        """The name that the broker resolved; None until the topic was found once."""
        self._current: Assignment | None = None
        self._connection: BrokerConnection | None = None
        self._broker_is_ours = False
        self._consumer_id = 0
        self._ended = False
        self._unreported: dict[asyncio.Future[None], None] = {}
        """Calls that wait for a registration that begins after them."""
        name = f"registration with {request.topic}"
        self._reconnector = Reconnector(name, pool.rng, self._register, self._failed)

    @property
    def resolved(self) -> TopicName:
        """The name of the topic that the broker resolved."""
        return self._found or self._request.topic.topic

    async def open(self, tasks: TaskRegistry, within_s: float) -> None:
        """Register, pass on the first assignment and stay registered in `tasks`; raises the refusal."""
        await self._pool.retry(
            self._register,
            f"registering with {self._request.topic}",
            lambda error: is_transient(error) and not self._is_final(error),
            within_s,
        )
        self._reconnector.handle(ReconnectEvent.ATTACHED)
        tasks.start(self._reconnector.run(), self._reconnector.name)

    def updated(self, wire: pb.ScalableConsumerAssignment) -> None:
        """Receive an assignment that the leader answered or pushed."""
        assignment = assignment_from_wire(wire)
        if assignment.replaces(self._current):
            self._current = assignment
            self._assigned(assignment)

    def connection_lost(self) -> None:
        """Called on disconnect, or when the broker stops leading the topic."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_ours:
            connection.close()
        self._reconnector.handle(ReconnectEvent.LOST)

    def report_soon(self) -> None:
        """Register again with a new report; other members may wait for it."""
        if self._broker_is_ours:
            self._reconnector.handle(ReconnectEvent.LOST)

    async def report(self) -> None:
        """Register again with a new report, and return when the leader has answered it."""
        if not self._broker_is_ours:
            raise UnsupportedFeatureError("this broker keeps no positions of checkpoint groups")
        answered = asyncio.get_running_loop().create_future()
        self._unreported[answered] = None
        self.report_soon()
        try:
            await answered
        finally:
            self._unreported.pop(answered, None)

    async def ask(self, command: Callable[[int, int], ProtoMessage]) -> None:
        """Send the leader a command about this consumer, made of its id and a request id.

        Raises the leader's refusal, or NotConnectedError while the consumer is not registered.
        """
        connection = self._connection
        if connection is None:
            raise NotConnectedError("the consumer is not registered now; try again")
        if not self._broker_is_ours:
            raise UnsupportedFeatureError(
                "this broker neither moves nor deletes the subscription of a scalable topic for its consumers"
            )
        made = command(self._consumer_id, self._pool.next_id())
        await connection.request(made, pb.CommandSuccess, self._pool.operation_timeout_s)

    def hang_up(self) -> asyncio.Future[object] | None:
        """Give the share back; return the answer, or the end of the connection, to come."""
        self._ended = True
        self._reconnector.handle(ReconnectEvent.ENDED)
        self._fail_reports(AlreadyClosedError("the consumer was closed"))
        connection, self._connection = self._connection, None
        if connection is None:
            return None
        return self._give_up(connection, self._consumer_id)

    def _failed(self, error: Exception) -> bool:
        if isinstance(error, TopicNotFoundError):
            self._gone(error)
        if not self._is_final(error):
            return False
        self._fail_reports(error)
        self._refused(error)
        return True

    def _fail_reports(self, error: AnabranchError) -> None:
        for answered in self._unreported:
            if not answered.done():
                answered.set_exception(error)

    def _is_final(self, error: BaseException) -> TypeGuard[AnabranchError]:
        if is_refused_role(error):
            return self._pool.ends(error)
        # Brokers of other vendors do not recognise a consumer that registers again, so their refusal passes.
        return self._broker_is_ours and isinstance(error, (ConsumerBusyError, SubscriptionNotFoundError))

    async def _register(self) -> None:
        self._reconnector.handle(ReconnectEvent.BEGUN)
        connection, self._connection = self._connection, None
        consumer_id = self._consumer_id
        # A consumer that is still registered sends its new report on the same connection.
        if connection is None:
            # A topic that was found once and is missing now was deleted on purpose.
            layout = await look_up_layout(self._pool, self._request.topic, create=self._found is None)
            if layout.is_classic:
                raise ClassicTopicError(f"{self._request.topic} is a classic topic; migrate it first")
            self._found = layout.name
            connection = await self._leader(layout.controller_url)
            consumer_id = self._pool.next_id()
        self._broker_is_ours = connection.is_ours
        connection.registrations[consumer_id] = self
        # The answer replaces any assignment: a topic that was created again has lower generations.
        self._current = None
        reported = list(self._unreported)
        try:
            reply = await connection.request(
                self._command(consumer_id),
                pb.CommandScalableTopicSubscribeResponse,
                self._pool.operation_timeout_s,
            )
        except BaseException:
            self._give_up(connection, consumer_id)
            raise
        if self._ended:
            # The consumer closed before the broker answered, and must not keep its name.
            self._give_up(connection, consumer_id)
            return
        if connection.registrations.get(consumer_id) is self:
            self._connection = connection
        self._consumer_id = consumer_id
        self.opened_in = reply.incarnation if reply.HasField("incarnation") else None
        self.updated(reply.assignment)
        for answered in reported:
            if not answered.done():
                answered.set_result(None)

    async def _leader(self, url: str | None) -> BrokerConnection:
        connection = await (self._pool.connection(address_of(url)) if url else self._pool.any_connection())
        if connection.is_ours:
            return connection
        # A consumer can leave a broker of Pulsar only by the end of its connection.
        return await self._pool.own_connection(connection.address)

    def _command(self, consumer_id: int) -> pb.CommandScalableTopicSubscribe:
        request = self._request
        command = pb.CommandScalableTopicSubscribe(
            request_id=self._pool.next_id(),
            topic=str(self.resolved),
            subscription=request.subscription,
            consumer_name=request.consumer_name,
            consumer_id=consumer_id,
            consumer_type=request.kind,
            initial_position=request.initial_position,
            instance=self._instance,
            opened_in=self.opened_in,
        )
        if request.report is not None:
            report = request.report()
            command.finished.CopyFrom(pb.FinishedSegments(segment_ids=report.finished))
            for id_, slots in report.parts.items():
                part = command.finished.parts.add(segment_id=id_)
                for range_ in slots:
                    part.ranges.add(start=range_.start, end=range_.end)
            command.positions = report.positions
            command.commits, command.releases = report.commits, report.releases
            if report.claims is not None:
                command.claims = report.claims
            if report.generation != UNCOUNTED:
                command.positions_generation = report.generation
        return command

    def _give_up(self, connection: BrokerConnection, consumer_id: int) -> asyncio.Future[object] | None:
        connection.registrations.pop(consumer_id, None)
        if not connection.is_ours:
            connection.close()
            return asyncio.ensure_future(connection.ended.wait())
        return connection.post(
            pb.CommandScalableTopicUnsubscribe(request_id=self._pool.next_id(), consumer_id=consumer_id)
        )


def assignment_from_wire(wire: pb.ScalableConsumerAssignment) -> Assignment:
    """Return the assignment in a response or in a pushed update; RemoteProtocolError if it is impossible."""
    if len(wire.segments) > SEGMENTS_MAX:
        raise RemoteProtocolError(f"the broker assigned {len(wire.segments)} segments")
    try:
        segments = tuple(
            AssignedSegment(
                segment.segment_id,
                HashRange(segment.hash_start, segment.hash_end),
                segment.segment_topic,
                tuple(HashRange(bucket.start, bucket.end) for bucket in segment.bucket_ranges),
            )
            for segment in wire.segments
        )
        leaving = tuple(
            (part.segment_id, tuple(HashRange(slots.start, slots.end) for slots in part.ranges))
            for part in wire.leaving
        )
    except LayoutError as error:
        raise RemoteProtocolError(f"the broker sent an impossible assignment: {error}") from error
    ids = {segment.segment_id for segment in segments}
    if len(ids) < len(segments) or max(ids, default=0) > ID_MAX:
        raise RemoteProtocolError("the broker assigned a segment twice, or one with an impossible id")
    generation = wire.generation if wire.HasField("generation") else UNCOUNTED
    return Assignment(wire.layout_epoch, generation, segments, wire.positions, leaving, wire.awaits)
