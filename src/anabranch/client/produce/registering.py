"""The registration of a producer with the owner of one segment, and the question which entries it has stored.

A producer registers again after each loss. Only brokers of ours answer the question for sealed segments. A
producer with a name of the caller's registers with all segments before its first message, because it numbers
its messages above every id that was stored under this name. The module knows no batch or entry.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from anabranch.client.net.closing import Deadline, took_too_long
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.ends import ProducerEnd
from anabranch.client.net.reconnector import SegmentOwner
from anabranch.client.options import AccessMode
from anabranch.errors import AnabranchError, NotConnectedError, ProducerFencedError, TopicNotFoundError
from anabranch.model.layout import Segment
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import MANAGED, SETTLE, pairs

if TYPE_CHECKING:
    from anabranch.client.produce.publisher import Publisher
    from anabranch.client.produce.routes import SegmentRoutes
    from anabranch.client.produce.segment_producer import SegmentProducer

NOTHING_STORED = -1

ANSWERS_S = 1.0
"""How long a producer that one segment has refused waits for the answers of the others."""

_ACCESS_MODES: Mapping[AccessMode, pb.ProducerAccessMode.ValueType] = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait_for_exclusive": pb.WaitForExclusive,
    "exclusive_with_fencing": pb.ExclusiveWithFencing,
}


class ProducerRegistration:
    """A producer's registration with one segment; `url` is the owner that the layout names."""

    def __init__(self, home: Publisher[Any], segment: Segment, topic: str, url: str | None) -> None:
        self.owner = SegmentOwner(home._pool, topic, url)
        self.connection: BrokerConnection | None = None
        """The connection to the owner; None while the producer is not registered."""
        self.producer_id = 0
        self.count = 0
        """How often the producer was registered; the broker calls it the producer's epoch."""
        self.schema_version = b""
        """The version of the producer's schema in this segment; empty if the segment has told none."""
        self._unanswered = False
        self._home = home
        self._topic = topic
        self._segment = segment

    @property
    def may_be_held(self) -> bool:
        """Whether the broker may still hold an earlier registration of this producer under its name."""
        return self.count > 0 or self._unanswered

    async def make(self, end: ProducerEnd) -> pb.CommandProducerSuccess | None:
        """Register `end` with the owner; None if the registration was lost before this call could return.

        Raises ProducerFencedError, from then on at each call, when another producer took an exclusive access.
        """
        if self._home._fenced is not None:
            raise ProducerFencedError(str(self._home._fenced))
        pool = self._home._pool
        connection = await self.owner.connection()
        command = self._command()
        producer_id = command.producer_id
        waits = self._home._options.access_mode == "wait_for_exclusive"
        timeout_s = math.inf if waits else pool.operation_timeout_s
        end.credit.begin(connection.credit)
        connection.producers[producer_id] = end
        try:
            reply = await connection.request(command, pb.CommandProducerSuccess, timeout_s)
        except BaseException as error:
            self._unanswered |= isinstance(error, (NotConnectedError, TimeoutError, asyncio.CancelledError))
            connection.producers.pop(producer_id, None)
            connection.send(pb.CommandCloseProducer(producer_id=producer_id, request_id=pool.next_id()))
            self._note_fencing(error)
            raise
        if not connection.open or connection.producers.get(producer_id) is not end:
            return None
        self.count += 1
        if reply.HasField("topic_epoch"):
            self._home._held_epochs.note(self._segment, reply.topic_epoch)
        self.producer_id = producer_id
        self.connection = connection
        self.schema_version = self._home._preparing.schema.registered(reply)
        return reply

    def _note_fencing(self, error: BaseException) -> None:
        """Remember that another producer took the access that this one had to the segment."""
        # A new registration would take the access back from the producer that replaced this one.
        held = self._home._held_epochs.of(self._segment)
        exclusive = held is not None and self._home._options.access_mode != "shared"
        if exclusive and isinstance(error, ProducerFencedError):
            self._home._fenced = error

    def _command(self) -> pb.CommandProducer:
        home, options = self._home, self._home._options
        properties = dict(options.properties)
        if self._segment.is_classic:
            properties[MANAGED] = "true"
        command = pb.CommandProducer(
            topic=self._topic,
            producer_id=home._pool.next_id(),
            request_id=home._pool.next_id(),
            producer_name=home.name,
            epoch=self.count,
            user_provided_producer_name=options.name is not None,
            producer_access_mode=_ACCESS_MODES[options.access_mode],
            metadata=pairs(properties),
            wants_credit=True,
            encrypted=True if options.encryption is not None else None,
        )
        home._preparing.schema.describe(command)
        if (held := home._held_epochs.of(self._segment)) is not None:
            command.topic_epoch = held
        if options.initial_subscription is not None:
            command.initial_subscription_name = options.initial_subscription
        return command

    def drop(self) -> BrokerConnection | None:
        """Forget the registration; return its connection unless the broker ended the registration."""
        connection, self.connection = self.connection, None
        if connection is None or connection.producers.pop(self.producer_id, None) is None:
            return None
        return connection

    def close_command(self) -> pb.CommandCloseProducer:
        request_id = self._home._pool.next_id()
        return pb.CommandCloseProducer(producer_id=self.producer_id, request_id=request_id)


async def ask_what_is_stored(
    home: Publisher[Any], connection: BrokerConnection, topic: str
) -> pb.CommandProducerSuccess | None:
    """The answer of the segment's owner; None if the owner is no broker of ours."""
    if not connection.is_ours:
        return None
    command = pb.CommandProducer(
        topic=topic,
        producer_id=home._pool.next_id(),
        request_id=home._pool.next_id(),
        producer_name=home.name,
        metadata=pairs({SETTLE: "true"}),
    )
    return await connection.request(command, pb.CommandProducerSuccess, home._pool.operation_timeout_s)


def stored_here(reply: pb.CommandProducerSuccess) -> int:
    """The last sequence id that the segment itself has stored.

    A successor also reports ids that its predecessors stored, but not every id below those is stored.
    """
    return reply.own_sequence_id if reply.HasField("own_sequence_id") else reply.last_sequence_id


async def register_everywhere(routes: SegmentRoutes, deadline: Deadline | None) -> int:
    """Register with all active segments; return the highest sequence id that they know of this producer.

    Raises OperationTimeoutError at the deadline. Without one the call waits for as long as a segment does.
    """
    highest = NOTHING_STORED
    claimed: set[int] = set()
    # A segment that is sealed meanwhile has successors, which an earlier producer of this name may have used.
    while missing := [segment for segment in routes.layout.layout.active if segment.id not in claimed]:
        registering = [routes.segment(segment) for segment in missing]
        try:
            for segment in registering:
                highest = max(highest, await _registered(routes, segment, deadline))
                claimed.add(segment.segment.id)
        except AnabranchError:
            # A broker of Apache Pulsar may carry out a registration after the command that gives it up, and
            # keep the next producer out meanwhile.
            answers = asyncio.wait([segment.attached for segment in registering])
            await (deadline or Deadline(ANSWERS_S)).allow(answers, ANSWERS_S)
            raise
    return highest


async def _registered(routes: SegmentRoutes, segment: SegmentProducer, deadline: Deadline | None) -> int:
    """Wait for a registration; return the highest sequence id that the segment knows of this producer."""
    attached = segment.attached
    if deadline is None:
        await asyncio.shield(attached)
    elif not await deadline.allow(asyncio.shield(attached)):
        limit_s = routes.home._pool.operation_timeout_s
        raise took_too_long(f"registering with {segment.topic}", limit_s, segment.problem)
    stored = attached.result()
    return NOTHING_STORED if stored is None else stored


async def ask_sealed_segments(routes: SegmentRoutes, within_s: float | None) -> int:
    """Return the highest sequence id of this producer in a sealed segment; successors need not know it."""
    highest = NOTHING_STORED
    deadline = None if within_s is None else Deadline(within_s)
    for sealed in routes.layout.layout.sealed:
        stored = await routes.home._pool.retry(
            partial(_last_stored, routes, sealed),
            f"asking segment {sealed.id} for its last sequence id",
            within_s=None if deadline is None else deadline.left_s,
        )
        highest = max(highest, stored)
    return highest


async def _last_stored(routes: SegmentRoutes, sealed: Segment) -> int:
    topic = routes.layout.segment_topic(sealed)
    try:
        connection = await routes.home._pool.connection_for(topic, routes.layout.owners.get(sealed.id))
        reply = await ask_what_is_stored(routes.home, connection, topic)
    except TopicNotFoundError:
        # The segment was deleted after the layout was sent; its messages are gone.
        return NOTHING_STORED
    return NOTHING_STORED if reply is None else reply.last_sequence_id
