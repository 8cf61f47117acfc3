"""Sending the acknowledgements of one segment's consumer until the broker has confirmed them.

Every acknowledgement asks for an answer. After a lost connection unanswered ones are sent again, before the
broker delivers anything new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from anabranch.client.decide.acknowledgements import Acknowledgements, LedgerEntry
from anabranch.client.decide.reconnection import Reconnection
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.options import log
from anabranch.errors import NotConnectedError
from anabranch.protocol.pb import pulsar_pb2 as pb


class AckSender:
    """Sends `acks` on the current connection; calls `refused` when the broker refuses one."""

    def __init__(
        self,
        topic: str,
        acks: Acknowledgements,
        life: Reconnection,
        next_id: Callable[[], int],
        refused: Callable[[], None],
    ) -> None:
        self._topic = topic
        self._acks = acks
        self._life = life
        self._next_id = next_id
        self._refused = refused
        self._connection: BrokerConnection | None = None
        self._consumer_id = 0
        self._changed = asyncio.Event()
        """Set when acknowledgements were confirmed, or the connection was lost."""

    def attached(self, connection: BrokerConnection, consumer_id: int) -> None:
        self._connection = connection
        self._consumer_id = consumer_id
        self.flush()

    def detached(self) -> None:
        """Keep unanswered acknowledgements for the next connection."""
        self._connection = None
        self._acks.take_back()
        self._changed.set()

    def flush(self) -> None:
        """Send waiting acknowledgements, if there is a connection."""
        connection = self._connection
        if connection is None:
            return
        for ack in self._acks.take(self._consumer_id, self._next_id):
            connection.post(ack).add_done_callback(partial(self._answered, ack.request_id))

    def redeliver(self, places: Iterable[LedgerEntry]) -> None:
        """Ask for entries again; without a connection the broker delivers them again by itself."""
        if self._connection is not None:
            command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._consumer_id)
            for ledger, entry in places:
                command.message_ids.add(ledgerId=ledger, entryId=entry)
            self._connection.send(command)

    async def confirmed(self) -> None:
        """Send waiting acknowledgements and return when all are confirmed, or the consumer has ended."""
        self.flush()
        while not self._acks.confirmed and not self._life.ended:
            self._changed.clear()
            await self._changed.wait()

    def _answered(self, request_id: int, answer: asyncio.Future[Any]) -> None:
        error = answer.exception() if not answer.cancelled() else None
        if isinstance(error, NotConnectedError) or not self._acks.awaits(request_id):
            return
        if error is not None:
            log.warning("%s refused an acknowledgement: %s", self._topic, error)
            self._refused()
            return
        self._life.refusals = 0
        self._acks.answered(request_id)
        self._changed.set()
