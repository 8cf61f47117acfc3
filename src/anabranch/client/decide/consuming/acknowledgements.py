"""Acknowledgements of one segment until the broker has confirmed them. Pure.

An acknowledgement waits, is sent, and waits again if the connection is lost before the broker confirms it.

Example: entry 7 of ledger 4 has three messages. Acknowledging the one at index 1 leaves the bits 0b101, and
the one at index 0 leaves 0b110. Both wait as one acknowledgement that leaves 0b100, the message at index 2.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.model.acks import bits_from_words, words_from_bits
from anabranch.protocol.pb import pulsar_pb2 as pb

IDS_MAX = 1000
"""Most message ids in one command."""

BITS_MAX = 4_000_000
"""Bits of ack sets after which a command takes no further id; a broker accepts commands of 2 MiB."""

LedgerEntry = tuple[int, int]
"""A plain tuple instead of a Position, because one is made for each delivery."""


class Acknowledgements:
    """The acknowledgements of one consumer; a set bit stands for a message that is not acknowledged."""

    def __init__(self) -> None:
        self._up_to: tuple[int, int, int] | None = None
        self._single: dict[LedgerEntry, int] = {}
        self._unanswered: dict[int, pb.CommandAck] = {}
        self._sent: dict[LedgerEntry, tuple[int, int]] = {}
        """For each entry in `_unanswered`: the number of commands with it, and the bits that they leave."""

    @property
    def confirmed(self) -> bool:
        """Whether the broker has confirmed all acknowledgements."""
        return self._up_to is None and not self._single and not self._unanswered

    def add_up_to(self, ledger: int, entry: int, remaining: int) -> None:
        """Acknowledge everything up to an entry, except the messages of the entry in `remaining`."""
        if self._up_to is None or (ledger, entry) >= self._up_to[:2]:
            self._up_to = (ledger, entry, remaining)

    def add(self, place: LedgerEntry, remaining: int) -> None:
        """Acknowledge one entry, except its messages in `remaining`."""
        self._single[place] = self._single.get(place, -1) & remaining

    def pending(self, place: LedgerEntry) -> int:
        """Bits of an entry's messages that no unconfirmed acknowledgement covers."""
        return self._single.get(place, -1) & self._sent.get(place, (0, -1))[1]

    def take(self, consumer_id: int, next_id: Callable[[], int]) -> list[pb.CommandAck]:
        """Return the waiting acknowledgements as commands, which count as sent from now on."""
        commands = []
        if self._up_to is not None:
            ids = [_id_data(*self._up_to)]
            self._up_to = None
            commands.append(pb.CommandAck(ack_type=pb.CommandAck.Cumulative, message_id=ids))
        while self._single:
            ids = [_id_data(*place, remaining) for place, remaining in self._choose()]
            commands.append(pb.CommandAck(ack_type=pb.CommandAck.Individual, message_id=ids))
        for ack in commands:
            ack.consumer_id, ack.request_id = consumer_id, next_id()
            self._unanswered[ack.request_id] = ack
        return commands

    def _choose(self) -> list[tuple[LedgerEntry, int]]:
        """Take the entries of the next command out of those that wait."""
        chosen: list[tuple[LedgerEntry, int]] = []
        bits = 0
        for place, remaining in self._single.items():
            chosen.append((place, remaining))
            bits += remaining.bit_length()
            if len(chosen) == IDS_MAX or bits > BITS_MAX:
                break
        for place, remaining in chosen:
            del self._single[place]
            times, pending = self._sent.get(place, (0, -1))
            self._sent[place] = (times + 1, pending & remaining)
        return chosen

    def awaits(self, request_id: int) -> bool:
        """Return whether a command was sent and has no answer yet."""
        return request_id in self._unanswered

    def answered(self, request_id: int) -> None:
        """Forget a command that the broker has confirmed."""
        ack = self._unanswered.pop(request_id)
        if ack.ack_type == pb.CommandAck.Individual:
            for id_ in ack.message_id:
                place = (id_.ledgerId, id_.entryId)
                times, pending = self._sent.pop(place)
                if times > 1:
                    self._sent[place] = (times - 1, pending)

    def take_back(self) -> None:
        """Let unanswered acknowledgements wait again, unless newer ones cover them."""
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
        self._sent.clear()


def leading(wanted: int, finished: int) -> int:
    """Return the bits of `wanted` before its first message that is not finished."""
    unfinished = wanted & ~finished
    return wanted & ((unfinished & -unfinished) - 1)


def _id_data(ledger: int, entry: int, remaining: int) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=ledger, entryId=entry, ack_set=words_from_bits(remaining))
