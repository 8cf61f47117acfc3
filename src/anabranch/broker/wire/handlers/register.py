"""Registration of stream and checkpoint consumers with the leader of their topic (73-75, 82)."""

from __future__ import annotations

from functools import partial

from anabranch.broker.engine.port import Engine
from anabranch.broker.wire.attachments import Registered
from anabranch.broker.wire.command_handler import CommandHandler, refuse_with
from anabranch.broker.wire.connection import ServerConnection
from anabranch.broker.wire.handlers.attach import check_known
from anabranch.broker.wire.handlers.queues import serve_queue
from anabranch.broker.wire.java_m1 import understands_ends
from anabranch.broker.wire.services import Services
from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import ConsumerNotFoundError, NotAllowedError, ServiceNotReadyError, TopicNotFoundError
from anabranch.metadata.records import InitialPosition, RangeRecord
from anabranch.model.assignment import Assignment
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.drains import union
from anabranch.model.names import TopicName, validate_client_name, validate_subscription
from anabranch.model.ranges import HashRange
from anabranch.protocol.commands import NO_ID
from anabranch.protocol.pb import pulsar_pb2 as pb


class AssignmentPush:
    """Sends a consumer the newest of its assignments; older ones that were not sent are dropped."""

    def __init__(self, connection: ServerConnection, consumer_id: int, name: str) -> None:
        self._connection = self.link = connection
        self._consumer_id = consumer_id
        self.name = name
        self.active = True

    def __call__(self, assignment: Assignment | None) -> None:
        if assignment is None:
            self.end()
        else:
            self._connection.pushes.send(("assignment", self._consumer_id), partial(self._send, assignment))

    async def alive(self) -> bool:
        return await self._connection.alive()

    def end(self) -> None:
        """Make the client register again, by a notice or by ending its connection."""
        if self.active:
            self.active = False
            self.uncount()
            self._connection.registrations.pop(self._consumer_id, None)
            if understands_ends(self._connection):
                close = pb.CommandCloseConsumer(consumer_id=self._consumer_id, request_id=NO_ID)
                self._connection.send(close)
            else:
                self._connection.hang_up()

    def uncount(self) -> None:
        """Free the place of the consumer among those that quotas count."""
        self._connection.services.quotas.usage.discard(self)

    def _send(self, assignment: Assignment) -> None:
        if self.active:
            update = pb.CommandScalableTopicAssignmentUpdate(consumer_id=self._consumer_id)
            update.assignment.CopyFrom(to_wire(assignment, self._connection.services.engine))
            self._connection.send(update)


async def register(connection: ServerConnection, command: pb.CommandScalableTopicSubscribe) -> None:
    with connection.openings.begin("registration", command.consumer_id):
        await _register(connection, command)


async def _register(connection: ServerConnection, command: pb.CommandScalableTopicSubscribe) -> None:
    validate_subscription(command.subscription)
    validate_client_name("consumer", command.consumer_name)
    name = TopicName.parse(command.topic).topic
    controller = await _leader(connection.services, name)
    await check_known(connection.services, name, command.subscription)
    if command.as_queue:
        await serve_queue(connection, command, controller, _start(command) or "latest")
        return
    former = connection.registrations.pop(command.consumer_id, None)
    if former is not None:
        former.lost()
    push = AssignmentPush(connection, command.consumer_id, command.consumer_name)
    quotas = connection.services.quotas
    await quotas.admit_member(name, command.subscription, push)
    with quotas.attaching(push):
        await _open_registration(connection, command, controller, push)


async def _open_registration(
    connection: ServerConnection,
    command: pb.CommandScalableTopicSubscribe,
    controller: TopicLeader,
    push: AssignmentPush,
) -> None:
    """Register an admitted consumer with the leader of its topic, and answer."""
    request = _request(connection, command)
    registration = await controller.register(command.subscription, command.consumer_name, push, request)
    if connection.ended:
        push.active = False
        push.uncount()
        controller.connection_lost(registration)
        return
    if connection.openings.is_cancelled("registration", command.consumer_id):
        # The connection lives on, so only this call takes the segments from the consumer.
        push.active = False
        await controller.leave(registration)
        raise ServiceNotReadyError("the client left before it was registered")
    name = TopicName.parse(command.topic).topic
    registered = Registered(controller, registration, name, push.end, push.uncount)
    connection.registrations[command.consumer_id] = registered
    connection.send(
        pb.CommandScalableTopicSubscribeResponse(
            request_id=command.request_id,
            assignment=to_wire(registration.assignment, connection.services.engine),
            incarnation=registration.incarnation if connection.peer_is_ours else None,
        )
    )


def _request(connection: ServerConnection, command: pb.CommandScalableTopicSubscribe) -> RegistrationRequest:
    traits = connection.services.engine.traits
    return RegistrationRequest(
        kind="CHECKPOINT" if command.consumer_type == pb.CHECKPOINT else "STREAM",
        start=_start(command) or traits.default_start,
        whole=connection.is_java_m1 or not traits.shares_segments,
        finished=_finished(command),
        partly_finished=_partly_finished(command),
        positions=_positions(command),
        generation=command.positions_generation if command.HasField("positions_generation") else -1,
        commits=command.commits,
        releases=command.releases,
        claims=command.claims if command.HasField("claims") else None,
        address=connection.address,
        instance=command.instance if command.HasField("instance") else None,
        attempt=command.consumer_id,
        opened_in=command.opened_in if command.HasField("opened_in") else None,
        principal=connection.caller.principal,
    )


async def _leader(services: Services, name: TopicName) -> TopicLeader:
    try:
        return await services.controllers.controller(name)
    except TopicNotFoundError:
        if await services.records.find_classic(name) is None:
            raise
        raise NotAllowedError(
            f"{name.local} is a classic topic, which cannot be read in key order; migrate it, or use a queue"
        ) from None


def _start(command: pb.CommandScalableTopicSubscribe) -> InitialPosition | None:
    """The start of a new subscription; None from clients that name it when they attach to segments."""
    if not command.HasField("initial_position"):
        return None
    return "earliest" if command.initial_position == pb.CommandSubscribe.Earliest else "latest"


def _finished(command: pb.CommandScalableTopicSubscribe) -> tuple[int, ...] | None:
    if command.consumer_type != pb.CHECKPOINT or not command.HasField("finished"):
        return None
    return tuple(sorted(set(command.finished.segment_ids)))


def _partly_finished(command: pb.CommandScalableTopicSubscribe) -> dict[int, tuple[RangeRecord, ...]]:
    found = {}
    for part in command.finished.parts:
        slots = union(HashRange(range_.start, range_.end) for range_ in part.ranges)
        found[part.segment_id] = tuple(RangeRecord(start=s.start, end=s.end) for s in slots)
    return dict(sorted(found.items()))


def _positions(command: pb.CommandScalableTopicSubscribe) -> bytes | None:
    """Return the reported positions, checked; None from a client without buckets in checkpoint groups."""
    if command.consumer_type != pb.CHECKPOINT or not command.HasField("positions"):
        return None
    if command.positions:
        Checkpoint.from_bytes(command.positions)
    return command.positions


async def leave(connection: ServerConnection, command: pb.CommandScalableTopicUnsubscribe) -> None:
    """Remove a consumer for good; its segments go to the other members at once."""
    connection.openings.cancel("registration", command.consumer_id)
    registered = connection.registrations.pop(command.consumer_id, None)
    if registered is None:
        raise ConsumerNotFoundError(f"consumer {command.consumer_id} is not registered")
    await registered.leave()
    connection.send(pb.CommandSuccess(request_id=command.request_id))


def to_wire(assignment: Assignment, engine: Engine) -> pb.ScalableConsumerAssignment:
    """Encode an assignment, with the names under which the engine holds its segments."""
    return pb.ScalableConsumerAssignment(
        layout_epoch=assignment.epoch,
        generation=assignment.generation,
        positions=assignment.positions or None,
        leaving=[
            pb.SegmentSlots(segment_id=id_, ranges=[pb.IntRange(start=r.start, end=r.end) for r in slots])
            for id_, slots in assignment.leaving
        ],
        awaits=assignment.awaits or None,
        segments=[
            pb.ScalableAssignedSegment(
                segment_id=segment.segment_id,
                hash_start=segment.range.start,
                hash_end=segment.range.end,
                segment_topic=engine.topic_of(segment.topic),
                bucket_ranges=[pb.IntRange(start=part.start, end=part.end) for part in segment.bucket_ranges],
            )
            for segment in assignment.segments
        ],
    )


HANDLERS = {
    pb.CommandScalableTopicSubscribe: CommandHandler(
        register, refuse_with(pb.CommandScalableTopicSubscribeResponse)
    ),
    pb.CommandScalableTopicUnsubscribe: CommandHandler(leave),
}
