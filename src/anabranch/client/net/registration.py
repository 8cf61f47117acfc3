"""A stream consumer's place in its subscription: registered with whoever leads the topic, told what to read.

The registration comes back for ever after a lost connection, under the same name, so that the leader finds
the share it had; also when the topic is deleted and made again. It ends when another consumer has the name,
or the subscription was deleted. Of the assignments of one registration those that are older than the one in
force are ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from anabranch.aio import TaskRegistry, is_transient, retry
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.layout_watch import RECONNECT, look_up_layout
from anabranch.client.options import log
from anabranch.errors import AnabranchError, ConsumerBusyError, SubscriptionNotFoundError
from anabranch.model.assignment import UNCOUNTED, AssignedSegment, Assignment
from anabranch.model.names import TopicName
from anabranch.model.ranges import HashRange
from anabranch.protocol.pb import pulsar_pb2 as pb

LEAVE_TIMEOUT_S = 5.0


def assignment_from_wire(wire: pb.ScalableConsumerAssignment) -> Assignment:
    """The value in a response or push."""
    return Assignment(
        wire.layout_epoch,
        wire.generation if wire.HasField("generation") else UNCOUNTED,
        tuple(
            AssignedSegment(
                segment.segment_id,
                HashRange(segment.hash_start, segment.hash_end),
                segment.segment_topic,
                tuple(HashRange(bucket.start, bucket.end) for bucket in segment.bucket_ranges),
            )
            for segment in wire.segments
        ),
    )


class Registration:
    """Registers one consumer and passes on its assignments."""

    def __init__(
        self,
        pool: ConnectionPool,
        tasks: TaskRegistry,
        topic: TopicName,
        subscription: str,
        consumer_name: str,
        initial_position: pb.CommandSubscribe.InitialPosition.ValueType,
        kind: pb.ScalableConsumerType.ValueType,
        assigned: Callable[[Assignment], None],
        refused: Callable[[AnabranchError], None],
        finished: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        self.resolved: TopicName = topic.topic
        """The name the broker resolved."""
        self.opened_in: int | None = None
        """The incarnation of the topic whose subscription is open."""
        self._pool = pool
        self._tasks = tasks
        self._topic = topic
        self._subscription = subscription
        self._consumer_name = consumer_name
        self._instance = pool.rng.getrandbits(64)
        """Tells this consumer from others of its name."""
        self._initial_position = initial_position
        self._kind = kind
        self._assigned = assigned
        self._refused = refused
        """Called once, when an open consumer has lost its place for good."""
        self._finished = finished
        """In a checkpoint group: what this consumer has read to its end."""
        self._current: Assignment | None = None
        self._known = False
        """Whether the topic was there once; then it is not for this consumer to make it again."""
        self._connection: BrokerConnection | None = None
        self._ours = False
        self._consumer_id = 0
        self._lost = asyncio.Event()

    async def open(self) -> None:
        """Register and pass on the first assignment; raises what the broker answered."""
        first = await retry(
            self._register,
            what=f"registering with {self._topic}",
            within_s=self._pool.operation_timeout_s,
            backoff=RECONNECT,
            rng=self._pool.rng,
            transient=lambda error: is_transient(error) and not self._is_final(error),
        )
        self._take(first)
        self._tasks.start(self._stay(), f"registration with {self._topic}")

    def updated(self, wire: pb.ScalableConsumerAssignment) -> None:
        """A push from the leader."""
        self._take(assignment_from_wire(wire))

    def connection_lost(self) -> None:
        """Also when only nobody leads the topic there any more: register again, wherever it is led."""
        self._connection = None
        self._lost.set()

    def finished_more(self) -> None:
        """Tell the leader, again if it is being told just now; other members may be waiting for it."""
        if self._ours:
            self._lost.set()

    def _take(self, assignment: Assignment) -> None:
        if assignment.replaces(self._current):
            self._current = assignment
            self._assigned(assignment)

    async def _register(self) -> Assignment:
        self._lost.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            # It is registered there, and has something new to say.
            return await self._ask(connection, self._consumer_id)
        layout = await look_up_layout(self._pool, self._topic, create=not self._known)
        self.resolved = layout.name
        self._known = True
        if layout.controller_url:
            connection = await self._pool.connection_to(layout.controller_url)
        else:
            connection = await self._pool.any_connection()
        return await self._ask(connection, self._pool.next_id())

    async def _ask(self, connection: BrokerConnection, consumer_id: int) -> Assignment:
        self._ours = connection.is_ours
        connection.registrations[consumer_id] = self
        # What the leader answers is what is stored, and that counts: generations of a topic that was made
        # again are lower.
        self._current = None
        try:
            reply = await connection.request(
                self._command(consumer_id),
                pb.CommandScalableTopicSubscribeResponse,
                self._pool.operation_timeout_s,
            )
        except BaseException:
            connection.registrations.pop(consumer_id, None)
            self._unsubscribe(connection, consumer_id)
            raise
        self._connection = connection if connection.open else None
        self._consumer_id = consumer_id
        self.opened_in = reply.incarnation if reply.HasField("incarnation") else None
        if self._connection is None:
            self._lost.set()
        return assignment_from_wire(reply.assignment)

    def _command(self, consumer_id: int) -> pb.CommandScalableTopicSubscribe:
        command = pb.CommandScalableTopicSubscribe(
            request_id=self._pool.next_id(),
            topic=str(self.resolved),
            subscription=self._subscription,
            consumer_name=self._consumer_name,
            consumer_id=consumer_id,
            consumer_type=self._kind,
            initial_position=self._initial_position,
            instance=self._instance,
            opened_in=self.opened_in,
        )
        if self._finished is not None:
            command.finished.CopyFrom(pb.FinishedSegments(segment_ids=self._finished()))
        return command

    def _is_final(self, error: BaseException) -> bool:
        """Whether the leader will not have this consumer; others do not know one that comes back."""
        return self._ours and isinstance(error, (ConsumerBusyError, SubscriptionNotFoundError))

    async def _stay(self) -> None:
        failures = 0
        while True:
            await self._lost.wait()
            try:
                self._take(await self._register())
                failures = 0
            except (AnabranchError, TimeoutError) as error:
                if isinstance(error, AnabranchError) and self._is_final(error):
                    self._refused(error)
                    return
                log.debug("registration with %s: %s", self._topic, error)
                await asyncio.sleep(RECONNECT.delay(failures, self._pool.rng))
                failures += 1
                self._lost.set()

    def _unsubscribe(self, connection: BrokerConnection, consumer_id: int) -> asyncio.Future[object] | None:
        # A broker that does not know the command would drop the connection.
        if not connection.is_ours:
            return None
        return connection.post(
            pb.CommandScalableTopicUnsubscribe(request_id=self._pool.next_id(), consumer_id=consumer_id)
        )

    async def leave(self) -> None:
        """Give the share back at once, where the broker understands that."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.registrations.pop(self._consumer_id, None)
        answer = self._unsubscribe(connection, self._consumer_id)
        if answer is None:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await answer
        except (AnabranchError, TimeoutError) as error:
            log.debug("leaving %s: %s", self._topic, error)
