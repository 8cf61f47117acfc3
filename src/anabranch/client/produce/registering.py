"""The registration of a producer with the owner of one segment, and the question which entries it has stored.

A producer registers again after each loss. Only Anabranch brokers answer the question for sealed segments.
The module does not know batches and entries.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.ends import ProducerEnd
from anabranch.client.net.reconnector import SegmentOwner
from anabranch.client.options import AccessMode
from anabranch.client.produce.parts import ProducerParts
from anabranch.errors import NotConnectedError, ProducerFencedError
from anabranch.model.layout import Segment
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import MANAGED, SETTLE, pairs

_ACCESS_MODES: Mapping[AccessMode, pb.ProducerAccessMode.ValueType] = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait_for_exclusive": pb.WaitForExclusive,
    "exclusive_with_fencing": pb.ExclusiveWithFencing,
}


class ProducerRegistration:
    """A producer's registration with one segment; `url` is the owner that the layout names."""

    def __init__(self, parts: ProducerParts, segment: Segment, topic: str, url: str | None) -> None:
        self.topic = topic
        self.owner = SegmentOwner(parts.pool, topic, url)
        self.problem: Exception | None = None
        """Why the last attempt to register failed."""
        self.connection: BrokerConnection | None = None
        """The connection to the owner; None while the producer is not registered."""
        self.producer_id = 0
        self.count = 0
        """How often the producer was registered; the broker calls it the producer's epoch."""
        self.schema_version = b""
        """The version of the producer's schema in this segment; empty if the segment has told none."""
        self._unanswered = False
        self._parts = parts
        self._segment = segment

    @property
    def is_attached(self) -> bool:
        """Whether entries can be sent now."""
        return self.connection is not None

    @property
    def may_be_held(self) -> bool:
        """Whether the broker may still hold an earlier registration of this producer under its name."""
        return self.count > 0 or self._unanswered

    async def make(self, end: ProducerEnd) -> pb.CommandProducerSuccess | None:
        """Register `end` with the owner; None if the registration was lost before this call could return.

        Raises ProducerFencedError, from then on at each call, when another producer took an exclusive access.
        """
        access, options, pool = self._parts.access, self._parts.options, self._parts.pool
        access.check()
        connection = await self.owner.connection()
        command = self._command()
        producer_id = command.producer_id
        waits = options.access_mode == "wait_for_exclusive"
        timeout_s = math.inf if waits else pool.operation_timeout_s
        end.credit.begin(connection.credit)
        connection.producers[producer_id] = end
        try:
            reply = await connection.request(command, pb.CommandProducerSuccess, timeout_s)
        except BaseException as error:
            self._unanswered |= isinstance(error, (NotConnectedError, TimeoutError, asyncio.CancelledError))
            connection.producers.pop(producer_id, None)
            connection.send(pb.CommandCloseProducer(producer_id=producer_id, request_id=pool.next_id()))
            if isinstance(error, ProducerFencedError) and options.access_mode != "shared":
                access.refused(self._segment, error)
            raise
        if not connection.open or connection.producers.get(producer_id) is not end:
            return None
        self.count += 1
        if reply.HasField("topic_epoch"):
            access.granted(self._segment, reply.topic_epoch)
        self.producer_id = producer_id
        self.connection = connection
        self.schema_version = self._parts.schema.registered(reply)
        return reply

    def _command(self) -> pb.CommandProducer:
        parts, options, next_id = self._parts, self._parts.options, self._parts.pool.next_id
        properties = dict(options.properties)
        if self._segment.is_classic:
            properties[MANAGED] = "true"
        command = pb.CommandProducer(
            topic=self.topic,
            producer_id=next_id(),
            request_id=next_id(),
            producer_name=parts.name,
            epoch=self.count,
            user_provided_producer_name=options.name is not None,
            producer_access_mode=_ACCESS_MODES[options.access_mode],
            metadata=pairs(properties),
            wants_credit=True,
            encrypted=True if options.encryption is not None else None,
        )
        parts.schema.describe(command)
        if (epoch := parts.access.epoch_of(self._segment)) is not None:
            command.topic_epoch = epoch
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
        request_id = self._parts.pool.next_id()
        return pb.CommandCloseProducer(producer_id=self.producer_id, request_id=request_id)


async def ask_what_is_stored(
    parts: ProducerParts, connection: BrokerConnection, topic: str
) -> pb.CommandProducerSuccess | None:
    """Return the answer of the segment's owner; None if the owner is not an Anabranch broker."""
    if not connection.is_ours:
        return None
    pool = parts.pool
    command = pb.CommandProducer(
        topic=topic,
        producer_id=pool.next_id(),
        request_id=pool.next_id(),
        producer_name=parts.name,
        metadata=pairs({SETTLE: "true"}),
    )
    return await connection.request(command, pb.CommandProducerSuccess, pool.operation_timeout_s)


def stored_here(reply: pb.CommandProducerSuccess) -> int:
    """Return the last sequence id that the segment itself has stored.

    A successor also reports ids that its predecessors stored, but not every id below those is stored.
    """
    return reply.own_sequence_id if reply.HasField("own_sequence_id") else reply.last_sequence_id
