"""The moves of a subscription that a seek needs: on the whole topic, or on single segments. Pure.

Example: segment 0 was split into 1 and 2. A seek to the message at index 2 of an entry with five messages in
segment 0 takes three moves: segment 0 to this entry, of which the messages at index 3 and 4 are read again,
and segments 1 and 2 to their beginning.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from anabranch.model.acks import words_from_bits
from anabranch.model.ids import EARLIEST, LATEST, MessageId
from anabranch.model.layout import Layout
from anabranch.protocol.pb import pulsar_pb2 as pb

EARLIEST_MS: Final = 0
LATEST_MS: Final = 2**53
"""A time after all messages."""


class SeekMove(NamedTuple):
    """One step of a seek: a time, or a place and the messages of its entry that are read again."""

    segment_id: int | None
    """None for the whole topic."""
    time_ms: int | None = None
    ledger: int = 0
    entry: int = 0
    ack_set: tuple[int, ...] = ()


def plan_seek(to: int | Literal["earliest", "latest"] | MessageId, layout: Layout) -> tuple[SeekMove, ...]:
    """Return the moves, in order, that continue with the messages from a time on, or behind a message.

    A message moves its own segment, and those in which messages were handed out before it. Segments that
    were made of these later start again at their first message. Other segments stay as they are.
    """
    if to == "earliest" or (isinstance(to, MessageId) and to.position == EARLIEST):
        return (SeekMove(None, EARLIEST_MS),)
    if to == "latest" or (isinstance(to, MessageId) and to.position == LATEST):
        return (SeekMove(None, LATEST_MS),)
    if not isinstance(to, MessageId):
        assert isinstance(to, int)
        return (SeekMove(None, to),)
    given = dict(to.vector or ((to.segment, to),))
    given[to.segment] = to
    known = sorted(id_ for id_ in given if id_ in layout.segments)
    moves = [_behind(given[id_]) for id_ in known]
    later: dict[int, None] = {}
    waiting = list(known)
    while waiting:
        for child in layout.segments[waiting.pop(0)].children:
            if child in layout.segments and child not in given and child not in later:
                later[child] = None
                waiting.append(child)
    return (*moves, *(SeekMove(id_, EARLIEST_MS) for id_ in sorted(later)))


def seek_command(move: SeekMove, consumer_id: int, request_id: int, *, to_leader: bool) -> pb.CommandSeek:
    """Return the SEEK of one move; without `to_leader` for the segment that the consumer is attached to."""
    command = pb.CommandSeek(consumer_id=consumer_id, request_id=request_id)
    if move.time_ms is not None:
        command.message_publish_time = move.time_ms
    else:
        command.message_id.ledgerId, command.message_id.entryId = move.ledger, move.entry
        command.message_id.ack_set.extend(move.ack_set)
    if to_leader and move.segment_id is not None:
        command.segment_id = move.segment_id
    elif to_leader:
        command.whole_topic = True
    return command


def _behind(id_: MessageId) -> SeekMove:
    """Continue with the next message of an entry, or with the next entry."""
    read = id_.batch_index + 1
    if 0 < read < id_.batch_size:
        left = ((1 << id_.batch_size) - 1) >> read << read
        return SeekMove(id_.segment, None, id_.ledger, id_.entry, tuple(words_from_bits(left)))
    return SeekMove(id_.segment, None, id_.ledger, id_.entry + 1)
