"""The link of a segment's consumer to its broker: the connection, and unconfirmed acknowledgements."""

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


class SegmentLink:
    """The link of one segment's consumer; it survives lost connections, and keeps what is not confirmed."""

    def __init__(
        self, pool: ConnectionPool, topic: str, reconnector: Reconnector, refused: Callable[[], None]
    ) -> None:
        """`refused` is called when the broker refuses an acknowledgement; it has to subscribe again."""
        self.acks = Acknowledgements()
        self.connection: BrokerConnection | None = None
        """None while the consumer is not attached."""
        self.consumer_id = 0
        self._pool = pool
        self._topic = topic
        self._life = reconnector.life
        self._trouble = reconnector.trouble
        self._refused = refused
        self._changed = asyncio.Event()
        """Set when acknowledgements were confirmed, or the connection was lost."""

    def attach(self, connection: BrokerConnection, consumer_id: int) -> None:
        self.connection, self.consumer_id = connection, consumer_id

    def detach(self) -> None:
        """Keep unanswered acknowledgements for the next connection."""
        self.connection = None
        self.acks.take_back()
        self._changed.set()

    def forget(self) -> None:
        """Forget all acknowledgements, because the subscription was moved."""
        self.acks = Acknowledgements()

    def flush(self) -> None:
        """Send waiting acknowledgements, if there is a connection."""
        connection = self.connection
        if connection is None:
            return
        for ack in self.acks.take(self.consumer_id, self._pool.next_id):
            connection.post(ack).add_done_callback(partial(self._answered, ack.request_id))

    async def changed(self) -> None:
        """Return when acknowledgements were confirmed, or the connection was lost."""
        self._changed.clear()
        await self._changed.wait()

    def ask_for(self, count: int) -> None:
        """Ask the broker for messages; the connection must be there."""
        assert self.connection is not None
        self.connection.send(pb.CommandFlow(consumer_id=self.consumer_id, messagePermits=count))

    def redeliver(self, places: Iterable[LedgerEntry], park: str | None = None) -> None:
        """Ask for entries again; without a connection the broker delivers them again by itself.

        `park` says why the broker is to keep their buckets until an operator releases them.
        """
        left = iter(places)
        while self.connection is not None and (chosen := list(islice(left, IDS_MAX))):
            command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self.consumer_id, park=park)
            for ledger, entry in chosen:
                command.message_ids.add(ledgerId=ledger, entryId=entry)
            self.connection.send(command)

    def when_carried_out(self, done: Callable[[], None]) -> None:
        """Call `done` when the broker has carried out every command so far, or the connection is lost."""
        if self.connection is None:
            done()
            return
        # Any request would do: the commands of a connection are answered in their order.
        self.ask_for_last_message(self.connection).add_done_callback(lambda _: done())

    def ask_for_last_message(self, connection: BrokerConnection) -> asyncio.Future[Any]:
        """Ask for the last message of the segment, and return the answer to come."""
        asking = pb.CommandGetLastMessageId(consumer_id=self.consumer_id, request_id=self._pool.next_id())
        return connection.post(asking)

    def _answered(self, request_id: int, answer: asyncio.Future[Any]) -> None:
        error = answer.exception() if not answer.cancelled() else None
        if isinstance(error, NotConnectedError) or not self.acks.awaits(request_id):
            return
        if error is not None:
            log.debug("%s refused an acknowledgement: %s", self._topic, error)
            self._trouble.refused(error)
            self._refused()
            return
        if self._life.refusals:
            self._life.refusals = 0
            self._trouble.accepted()
        self.acks.answered(request_id)
        self._changed.set()
