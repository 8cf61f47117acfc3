"""Converts between a Spark cut and a client checkpoint, which express the same progress. Pure.

A cut holds the next position of each segment that is being read. A checkpoint holds the last message that was
read in each segment, the end for segments that were read completely, and nothing for segments still to come.

Example: segment 0 is sealed with 100 messages, and its child segment 1 has 40. The cut {0: 100, 1: 20} has
read segment 0 to its end, and position 20 of segment 1 is the first message of entry 8:2. The checkpoint is
"segment 0: latest, segment 1: entry 8:1". For the cut {0: 3}, whose position 3 is the fourth of ten messages
in entry 7:0, it is "segment 0: message 2 of entry 7:0", and segment 1 is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anabranch.errors import DataLossError
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.ids import EARLIEST, LATEST, MessageId
from anabranch.spark.decide.source.offsets import TopicCut
from anabranch.spark.decide.source.starts import cut_from
from anabranch.spark.decide.source.topology import Topology


class StoredPlace(NamedTuple):
    """The entry that holds the message at a position, and the number of the message in it."""

    ledger: int
    entry: int
    batch_index: int
    message_count: int = 0


def checkpoint_from(cut: TopicCut, topology: Topology, entries: Mapping[int, StoredPlace]) -> Checkpoint:
    """Return the checkpoint for a cut; `entries` says where the message at each position is stored."""
    positions = {}
    for id_, at in read_positions(cut, topology).items():
        is_open = id_ in cut.positions and not topology.finished(id_, at)
        positions[id_] = _last_read(id_, at, entries[id_]) if is_open else MessageId(id_, *LATEST)
    return Checkpoint(positions)


def read_positions(cut: TopicCut, topology: Topology) -> dict[int, int]:
    """Return how far a cut has read each segment; segments behind the cut are absent.

    A segment that is not in the cut and not behind it was read to its end.
    """
    layout, at = topology.layout, cut.positions
    ahead = {other for id_ in at for other in layout.descendants(id_)}
    return {
        id_: at.get(id_, tail.next)
        for id_, tail in topology.tails.items()
        if id_ in layout.segments and (id_ in at or id_ not in ahead)
    }


def _last_read(segment: int, position: int, place: StoredPlace) -> MessageId:
    """Return the id of the message before a position, or of the whole entry before it."""
    if position == 0:
        return MessageId(segment, *EARLIEST, next_index=0)
    if place.batch_index > 0:
        return MessageId(
            segment,
            place.ledger,
            place.entry,
            place.batch_index - 1,
            place.message_count,
            next_index=position,
        )
    return MessageId(segment, place.ledger, place.entry - 1, next_index=position)


def lowest_ids(checkpoint: Checkpoint) -> dict[int, MessageId]:
    """Return the last message read in each segment: the lowest one if its buckets are at different ids."""
    return {id_: slots.lowest for id_ in checkpoint.positions if (slots := checkpoint.slots(id_)) is not None}


def known_position(id_: MessageId, topology: Topology) -> int | None:
    """Return the position after a message of a checkpoint, or None if a broker has to be asked."""
    tail = topology.tails[id_.segment]
    if id_.position == LATEST:
        return tail.next
    if id_.next_index >= 0:
        return id_.next_index
    return tail.first if id_.position == EARLIEST else None


def cut_at(places: Mapping[int, int], topology: Topology) -> TopicCut:
    """Return the cut that continues at these positions.

    An unread message that retention removed is still reported as lost, so positions are not moved past it.
    """
    found = cut_from(places, topology)
    exact = {id_: min(places[id_], topology.tails[id_].next) for id_ in found.positions}
    return TopicCut(exact, found.epoch)


def check_still_there(checkpoint: Checkpoint, topology: Topology, topic: str) -> None:
    """Raise DataLossError if a segment was removed before the checkpoint had read it to its end."""
    for id_, last in lowest_ids(checkpoint).items():
        if id_ not in topology.layout.segments and last.position != LATEST:
            raise DataLossError(
                f"segment {id_} of topic {topic} was removed before this checkpoint had read it to its end"
            )
