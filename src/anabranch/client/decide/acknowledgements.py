"""What the application has acknowledged of one segment, until the broker has confirmed it.

Pure bookkeeping. An acknowledgement waits, is on its way, and is forgotten with its answer; what was on its
way when a connection is lost waits again. Must not know connections, nor when anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.model.acks import bits_from_words, words_from_bits
from anabranch.protocol.pb import pulsar_pb2 as pb

IDS_MAX = 1000
"""Most ids in one acknowledgement."""

LedgerEntry = tuple[int, int]
"""A Position without its name, since one is made for each delivery."""


class Acknowledgements:
    """Those of one consumer on one segment; bits stand for messages of an entry that are not acknowledged."""

    def __init__(self) -> None:
        self._up_to: tuple[int, int, int] | None = None
        self._single: dict[LedgerEntry, int] = {}
        self._unanswered: dict[int, pb.CommandAck] = {}
        self._on_the_way: dict[LedgerEntry, tuple[int, int]] = {}
        """For entries in `_unanswered`: how often they are in it, and the bits that these leave."""

    @property
    def confirmed(self) -> bool:
        """Whether the broker has confirmed all."""
        return self._up_to is None and not self._single and not self._unanswered

    def add_up_to(self, ledger: int, entry: int, remaining: int) -> None:
        """Everything up to this entry, except for the messages in it whose bits are in `remaining`."""
        if self._up_to is None or (ledger, entry) >= self._up_to[:2]:
            self._up_to = (ledger, entry, remaining)

    def add(self, place: LedgerEntry, remaining: int) -> None:
        """One entry, except for the messages whose bits are in `remaining`."""
        self._single[place] = self._single.get(place, -1) & remaining

    def pending(self, place: LedgerEntry) -> int:
        """Bits of the entry's messages that no acknowledgement here covers; confirmed ones are forgotten."""
        return self._single.get(place, -1) & self._on_the_way.get(place, (0, -1))[1]

    def take(self, consumer_id: int, next_id: Callable[[], int]) -> list[pb.CommandAck]:
        """What waits, as commands that are on their way from now on."""
        commands = []
        if self._up_to is not None:
            ids = [_id_data(*self._up_to)]
            self._up_to = None
            commands.append(self._command(consumer_id, next_id(), pb.CommandAck.Cumulative, ids))
        while self._single:
            chosen = list(self._single.items())[:IDS_MAX]
            for place, remaining in chosen:
                del self._single[place]
                times, pending = self._on_the_way.get(place, (0, -1))
                self._on_the_way[place] = (times + 1, pending & remaining)
            ids = [_id_data(*place, remaining) for place, remaining in chosen]
            commands.append(self._command(consumer_id, next_id(), pb.CommandAck.Individual, ids))
        return commands

    def _command(
        self,
        consumer_id: int,
        request_id: int,
        kind: pb.CommandAck.AckType.ValueType,
        ids: list[pb.MessageIdData],
    ) -> pb.CommandAck:
        ack = pb.CommandAck(consumer_id=consumer_id, ack_type=kind, message_id=ids, request_id=request_id)
        self._unanswered[request_id] = ack
        return ack

    def awaits(self, request_id: int) -> bool:
        """Whether the answer to this command still matters."""
        return request_id in self._unanswered

    def answered(self, request_id: int) -> None:
        """The broker has confirmed this command."""
        ack = self._unanswered.pop(request_id)
        if ack.ack_type == pb.CommandAck.Individual:
            for id_ in ack.message_id:
                place = (id_.ledgerId, id_.entryId)
                times, pending = self._on_the_way.pop(place)
                if times > 1:
                    self._on_the_way[place] = (times - 1, pending)

    def take_back(self) -> None:
        """The connection is lost: what has no answer waits again, unless something newer covers it."""
        newest, self._up_to = self._up_to, None
        for ack in self._unanswered.values():
            for id_ in ack.message_id:
                remaining = bits_from_words(id_.ack_set)
                if ack.ack_type == pb.CommandAck.Cumulative:
                    self.add_up_to(id_.ledgerId, id_.entryId, remaining)
                else:
                    self.add((id_.ledgerId, id_.entryId), remaining)
        if newest is not None:
            self.add_up_to(*newest)
        self._unanswered.clear()
        self._on_the_way.clear()

    def clear(self) -> None:
        """Nothing that was acknowledged counts any more."""
        self._up_to = None
        self._single.clear()
        self._unanswered.clear()
        self._on_the_way.clear()


def _id_data(ledger: int, entry: int, remaining: int) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=ledger, entryId=entry, ack_set=words_from_bits(remaining))
