"""Sends ready-made entries to one log under one registration, for bulk writers such as Spark's sink.

The caller chooses producer name and sequence ids, and knows from the registration what the log has stored
under this name. Any disturbance ends the sender for good: a lost connection, a seal, a refusal. The caller
then opens another sender, learns what is stored, and decides again. So no entry is repeated blindly.

A broker of Apache Pulsar recognises an entry by its lowest sequence id and drops it whole, so the caller must
know exactly what is stored there. An entry that such a broker has recognised is a disturbance too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from anabranch.client.decide.producing.credits import ProducerCredit
from anabranch.client.net.connection import BrokerConnection
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.errors import (
    AlreadyClosedError,
    AnabranchError,
    NotConnectedError,
    OperationTimeoutError,
    UnsupportedFeatureError,
)
from anabranch.protocol.commands import NO_ID, SendReceipt
from anabranch.protocol.hot_frames import encode_send
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.protocol.properties import MANAGED, pairs
from anabranch.protocol.wire_errors import exception_for


class ReadyEntry(NamedTuple):
    """An entry as it is stored."""

    data: bytes
    messages: int
    sequence: int
    """The highest sequence id of its messages."""
    first: int
    """The lowest one."""


class EntrySender:
    """A producer of one log for one registration."""

    def __init__(
        self, pool: ConnectionPool, log: str, name: str, *, managed: bool = False, on_pulsar: bool = False
    ) -> None:
        """`managed` says that the log is a classic topic which a layout lists as a segment.

        `on_pulsar` says that a broker of Apache Pulsar serves the log. The id that it tells as `own` need not
        be stored yet, and it knows nothing about logs before this one.
        """
        self.credit = ProducerCredit()
        self.own = -1
        """The highest sequence id that the log itself had stored under the name at the registration."""
        self.known = -1
        """The highest that the log or a log before it had stored; not every id below it is stored."""
        self.unanswered_bytes = 0
        self.answered = 0
        """Entries that the log has stored, or had stored before."""
        self._pool = pool
        self._log = log
        self._name = name
        self._managed = managed
        self._on_pulsar = on_pulsar
        self._connection: BrokerConnection | None = None
        self._id = 0
        self._unsent: deque[ReadyEntry] = deque()
        self._sent: deque[ReadyEntry] = deque()
        self._changed = asyncio.Event()
        self._error: AnabranchError | None = None

    async def open(self, url: str | None) -> None:
        """Register with the log's owner, at `url` if it is known; raises the broker's refusal."""
        pool = self._pool
        connection = await pool.connection_for(self._log, url)
        self._id = pool.next_id()
        command = pb.CommandProducer(
            topic=self._log,
            producer_id=self._id,
            request_id=pool.next_id(),
            producer_name=self._name,
            user_provided_producer_name=True,
            metadata=pairs({MANAGED: "true"} if self._managed else {}),
            wants_credit=True,
        )
        self.credit.begin(connection.credit)
        connection.producers[self._id] = self
        try:
            reply = await connection.request(command, pb.CommandProducerSuccess, pool.operation_timeout_s)
        except BaseException:
            connection.producers.pop(self._id, None)
            connection.send(pb.CommandCloseProducer(producer_id=self._id, request_id=pool.next_id()))
            raise
        self._connection = connection
        self._check()
        if self._on_pulsar:
            self.own = self.known = reply.last_sequence_id
            return
        if not reply.HasField("own_sequence_id"):
            self.close()
            raise UnsupportedFeatureError(f"the broker of {self._log} does not say what it has stored")
        self.own, self.known = reply.own_sequence_id, max(reply.own_sequence_id, reply.last_sequence_id)

    def send(self, entry: ReadyEntry) -> None:
        """Queue an entry; raises the error that ended the sender."""
        self._check()
        self._unsent.append(entry)
        self.unanswered_bytes += len(entry.data)
        self._write()

    async def wait_until(self, unanswered_bytes: int) -> None:
        """Wait until at most this many bytes are unanswered; raises the error that ended the sender.

        Raises OperationTimeoutError when the broker answers nothing for the operation timeout: a topic of
        Apache Pulsar may leave entries without an answer when it is terminated.
        """
        while True:
            self._check()
            if self.unanswered_bytes <= unanswered_bytes:
                return
            self._changed.clear()
            limit_s = self._pool.operation_timeout_s
            try:
                async with asyncio.timeout(limit_s):
                    await self._changed.wait()
            except TimeoutError:
                raise OperationTimeoutError(f"{self._log} answered no entry within {limit_s:g} s") from None

    def close(self) -> asyncio.Future[object] | None:
        """Give the registration back; the future is done when the broker has let the name go."""
        connection, self._connection = self._connection, None
        self._end(AlreadyClosedError(f"the sender of {self._log} is closed"))
        if connection is None or connection.producers.pop(self._id, None) is None:
            return None
        connection.on_writable.pop(self._write, None)
        self.credit.link.forget(self._write_in_turn)
        return connection.post(pb.CommandCloseProducer(producer_id=self._id, request_id=self._pool.next_id()))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _end(self, error: AnabranchError) -> None:
        if self._error is None:
            self._error = error
        self._changed.set()

    def _write(self, *, in_turn: bool = False) -> None:
        connection = self._connection
        while self._unsent and connection is not None and self._error is None:
            if not connection.pump.writable:
                connection.on_writable[self._write] = None
                return
            if not self.credit.has_room or (self.credit.link.has_line and not in_turn):
                if self.credit.has_own_room:
                    self.credit.link.wait(self._write_in_turn)
                return
            entry = self._unsent.popleft()
            self._sent.append(entry)
            self.credit.take(len(entry.data), entry.messages)
            named, last = self._named(entry), entry.sequence
            connection.pump.write_many(encode_send(self._id, named, entry.messages, last, entry.data))

    def _write_in_turn(self) -> None:
        self._write(in_turn=True)

    def _named(self, entry: ReadyEntry) -> int:
        """Return the sequence id by which the broker recognises an entry, and which it answers."""
        return entry.first if self._on_pulsar else entry.sequence

    # Reports of the connection.

    def receipt(self, receipt: SendReceipt) -> None:
        if not self._sent or receipt.sequence_id != self._named(self._sent[0]):
            self._end(NotConnectedError(f"{self._log}: a receipt for {receipt.sequence_id} was not due"))
            return
        if self._on_pulsar and receipt.ledger in (NO_ID, -1):
            self._end(NotConnectedError(f"{self._log} had stored {receipt.sequence_id} before"))
            return
        entry = self._sent.popleft()
        self.credit.give_back(len(entry.data), entry.messages)
        self.unanswered_bytes -= len(entry.data)
        self.answered += 1
        self._changed.set()
        self._write()

    def credited(self) -> None:
        self._write()

    def send_error(self, error: pb.CommandSendError) -> None:
        self._end(exception_for(error.error, error.message))

    def closed_by_broker(self, *, sealed: bool = False) -> None:
        self._end(NotConnectedError(f"the broker closed the producer of {self._log}"))

    def connection_lost(self) -> None:
        self._end(NotConnectedError(f"the connection to the owner of {self._log} was lost"))
