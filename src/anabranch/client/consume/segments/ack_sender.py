"""Sending the acknowledgements of one segment's consumer until the broker has confirmed them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

from anabranch.client.decide.consuming.acknowledgements import IDS_MAX, Acknowledgements, LedgerEntry
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.reconnector import Reconnector
from anabranch.client.options import log
from anabranch.errors import NotConnectedError
from anabranch.protocol.pb import pulsar_pb2 as pb


class AckSender:
    """The half of a segment's consumer that acknowledges."""

    def __init__(self, pool: ConnectionPool, topic: str, reconnector: Reconnector) -> None:
        self.topic = topic
        self._acks = Acknowledgements()
        self._pool = pool
        self._life = reconnector.life
        self._trouble = reconnector.trouble
        self._connection: BrokerConnection | None = None
        self._consumer_id = 0
        self._acks_changed = asyncio.Event()
        """Set when acknowledgements were confirmed, or the connection was lost."""

    @property
    def acks(self) -> Acknowledgements:
        """The acknowledgements, with all that were noted."""
        return self._acks

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def flush_acks(self) -> None:
        """Send waiting acknowledgements, if there is a connection."""
        connection = self._connection
        if connection is None:
            return
        for ack in self.acks.take(self._consumer_id, self._pool.next_id):
            connection.post(ack).add_done_callback(partial(self._ack_answered, ack.request_id))

    def redeliver(self, places: Iterable[LedgerEntry], park: str | None = None) -> None:
        """Ask for entries again; without a connection the broker delivers them again by itself.

        `park` says why the broker is to keep their buckets until an operator releases them.
        """
        left = iter(places)
        while self._connection is not None and (chosen := list(islice(left, IDS_MAX))):
            command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._consumer_id, park=park)
            for ledger, entry in chosen:
                command.message_ids.add(ledgerId=ledger, entryId=entry)
            self._connection.send(command)

    def when_carried_out(self, done: Callable[[], None]) -> None:
        """Call `done` when the broker has carried out every command so far, or the connection is lost."""
        if self._connection is None:
            done()
            return
        # Any request would do: a connection's commands are answered in their order.
        self._ask_for_last_message(self._connection).add_done_callback(lambda _: done())

    def _ask_for_last_message(self, connection: BrokerConnection) -> asyncio.Future[Any]:
        """Ask for the last message of the segment, and return the answer to come."""
        asking = pb.CommandGetLastMessageId(consumer_id=self._consumer_id, request_id=self._pool.next_id())
        return connection.post(asking)

    async def acks_confirmed(self) -> None:
        """Send waiting acknowledgements and return when all are confirmed, or the consumer has ended."""
        self.flush_acks()
        while not self.acks.confirmed and not self._life.ended:
            self._acks_changed.clear()
            await self._acks_changed.wait()

    def _detach(self) -> None:
        """Keep unanswered acknowledgements for the next connection."""
        self._connection = None
        self.acks.take_back()
        self._acks_changed.set()

    def _ack_answered(self, request_id: int, answer: asyncio.Future[Any]) -> None:
        error = answer.exception() if not answer.cancelled() else None
        if isinstance(error, NotConnectedError) or not self.acks.awaits(request_id):
            return
        if error is not None:
            log.debug("%s refused an acknowledgement: %s", self.topic, error)
            self._trouble.refused(error)
            self._ack_refused()
            return
        if self._life.refusals:
            self._life.refusals = 0
            self._trouble.accepted()
        self.acks.answered(request_id)
        self._acks_changed.set()

    def _ack_refused(self) -> None:
        """Subscribe again; the acknowledgement is sent again then."""
        raise NotImplementedError
