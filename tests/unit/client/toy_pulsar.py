"""A toy of Apache Pulsar for unit tests: a broker with one topic, which delivers what its permits allow."""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch.client.bulk.place_reader import EntryPlace
from anabranch.protocol.commands import NO_ID, Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.unit.client.fakes import FakeConnection, FakePool

PLACES = [EntryPlace(3, n) for n in range(6)] + [EntryPlace(7, n) for n in range(5)] + [EntryPlace(8, 0)]


class ToyPulsarLink(FakeConnection):
    """A connection to a broker with one topic; each consumer gets entries as it grants permits."""

    peer = "toy"

    def __init__(self, toy: ToyPulsar) -> None:
        super().__init__(lambda message: self._reply(message))
        self._toy = toy
        self._left: dict[int, list[EntryPlace]] = {}
        self._sought: set[int] = set()

    def _reply(self, message: Any) -> Any:
        if isinstance(message, pb.CommandSubscribe):
            start = message.start_message_id
            at = EntryPlace(-1, -1) if start.ledgerId == NO_ID else EntryPlace(start.ledgerId, start.entryId)
            at = EntryPlace(-1, -1) if self._toy.starts_early else at
            self._left[message.consumer_id] = [place for place in self._toy.stored if place >= at]
            return pb.CommandSuccess(request_id=message.request_id)
        if isinstance(message, pb.CommandSeek):
            self._sought.add(message.consumer_id)
            return pb.CommandSuccess(request_id=message.request_id)
        last = self._toy.stored[-1] if self._toy.stored else EntryPlace(NO_ID, NO_ID)
        first_ledger = self._toy.stored[0].ledger if self._toy.stored else 9
        mark = pb.MessageIdData(ledgerId=first_ledger, entryId=NO_ID)
        if self._sought and self._toy.stored:
            # The cursor was moved to a time that no message has reached.
            mark = pb.MessageIdData(ledgerId=last.ledger, entryId=last.entry)
            self._sought.clear()
        if self._toy.ends_empty:
            last = EntryPlace(NO_ID, NO_ID)
        return pb.CommandGetLastMessageIdResponse(
            request_id=message.request_id,
            last_message_id=pb.MessageIdData(ledgerId=last.ledger, entryId=last.entry, batch_index=4),
            consumer_mark_delete_position=mark,
        )

    def send(self, message: Any) -> None:
        super().send(message)
        if isinstance(message, pb.CommandFlow):
            asyncio.get_running_loop().call_soon(self._deliver, message.consumer_id, message.messagePermits)

    def _deliver(self, consumer_id: int, permits: int) -> None:
        left = self._left[consumer_id]
        for place in left[:permits]:
            if consumer_id in self.consumers:
                found = Delivery(consumer_id, *place, -1, 0, (), None, None, None, self._toy.data)
                self.consumers[consumer_id].delivered(found)
        del left[:permits]


class ToyPulsar(FakePool):
    """The pool and the broker behind it."""

    def __init__(self, stored: list[EntryPlace]) -> None:
        super().__init__(lambda message: None)
        self.stored = stored
        self.data = b"not an entry"
        """Of each entry."""
        self.ends_empty = False
        """Whether an empty ledger follows the last entry, so that the broker names no last message."""
        self.starts_early = False
        """Whether the broker delivers from its first entry on, also if it is asked for a later one."""

    async def connection_for(self, topic: str, url: str | None = None) -> Any:
        if not self.connections or not self.connections[-1].open:
            self.connections.append(ToyPulsarLink(self))
        return self.connections[-1]
