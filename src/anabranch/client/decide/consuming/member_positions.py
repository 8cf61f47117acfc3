"""How far a member of a checkpoint group has read, in the slots that the leader gives to it. Pure.

A slot that comes to the member begins at the position that the group has committed. A slot that leaves keeps
its position until the member has committed it, or another member has claimed it.

Example: a member reads slots 0 to 32767 of segment 3, and the leader gives 0 to 16383 to another member.
These slots move from `mine` to `leaving`, and the member goes on with 16384 to 32767. The other member begins
where the group has committed, so no message between the two is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.client.decide.consuming.ordering import readable
from anabranch.client.decide.consuming.read_positions import ReadPositions
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.drains import ALL, Ranges, difference, intersection, union
from anabranch.model.ids import LATEST, MessageId
from anabranch.model.layout import Layout, Segment
from anabranch.model.slot_positions import UNKNOWN, SlotPositions


class MemberPositions(ReadPositions):
    """The positions of one member, which reads the slots that it was given last."""

    def __init__(self, start: Checkpoint) -> None:
        super().__init__(start)
        self.mine: dict[int, Ranges] = {}
        """The slots of each segment that this member reads."""
        self.leaving: dict[int, Ranges] = {}
        """The slots that this member reads no further, and has to commit."""
        self.group: dict[int, SlotPositions] = {}
        """The positions that members of the group have committed, as far as is known here."""

        self._tails: dict[int, SlotPositions] = {}
        """The positions in each segment before its slots were finished."""

    def slots(self, id_: int) -> Ranges:
        return self.mine.get(id_, ())

    def follow(self, layout: Layout) -> None:
        new = [id_ for id_ in layout.segments if id_ not in self.positions]
        super().follow(layout)
        for id_ in sorted(new):
            given, self.mine[id_] = self.mine.get(id_, ()), ()
            self._take(id_, given)
        self.group = {id_: slots for id_, slots in self.group.items() if id_ in layout.segments}

    def readable(self, layout: Layout) -> tuple[Segment, ...]:
        """As without a group; slots that others read count as finished, because the leader waits for them."""
        left = {id_: self.left(id_) for id_ in layout.segments}
        done = [id_ for id_, slots in left.items() if not slots]
        elsewhere = {id_: difference(ALL, slots) for id_, slots in left.items()}
        return readable(layout, done, elsewhere, left)

    def finish(self, id_: int) -> None:
        self._tails[id_] = self.at(id_)
        super().finish(id_)

    def ended(self) -> dict[int, Ranges]:
        """Finished slots whose last message is committed, while the group does not know that it is last."""
        found: dict[int, Ranges] = {}
        for id_, tail in self._tails.items():
            if id_ in self.positions:
                committed = self.group.get(id_, SlotPositions.unknown(id_))
                news = difference(self._slots[id_].finished(), committed.finished())
                if settled := difference(news, tail.exceeding(self.owed(id_))):
                    found[id_] = settled
        return found

    def finished_parts(self) -> dict[int, Ranges]:
        """Return the finished slots of segments that are not finished as a whole."""
        found = {id_: self._slots[id_].finished() for id_ in self.positions if id_ not in self.finished}
        return {id_: slots for id_, slots in found.items() if slots}

    def finished_before(self) -> tuple[int, ...]:
        """Return the segments that the start of this consumer excludes, or names as read to the end."""
        done = (id_ for id_, slots in self._starts.items() if slots.finished() == ALL)
        return tuple(sorted({*self.excluded, *done}))

    def owed(self, id_: int) -> SlotPositions:
        """Return the positions at which other members go on: those of the group, or a common start."""
        committed = self.group.get(id_, SlotPositions.unknown(id_))
        return self._starts[id_].merged(committed).known(id_)

    def uncommitted(self, id_: int, committed: SlotPositions) -> Ranges:
        """The leaving slots of a segment that were read further than the group, and `committed`, know."""
        ahead = self.at(id_).exceeding(self.owed(id_).merged(committed))
        return intersection(ahead, self.leaving.get(id_, ()))

    def unknown_to_group(self, id_: int) -> bool:
        """Whether the group knows no position of a slot that is read here, and its start is known here."""
        group = self.group.get(id_, SlotPositions.unknown(id_))
        unknown = difference(self.slots(id_), group.where(_is_known))
        return bool(intersection(unknown, self.began[id_].where(_is_known)))

    def changed(self, given: Mapping[int, Ranges]) -> list[int]:
        """Return the listed segments whose slots an assignment changes."""
        return [id_ for id_ in self.positions if self.slots(id_) != given.get(id_, ())]

    def assign(
        self, given: Mapping[int, Ranges], leaving: Mapping[int, Ranges], group: Checkpoint, *, commits: bool
    ) -> dict[int, Ranges]:
        """Read these slots from now on; return lost slots that were read further than the group knows.

        A gained slot begins at the position that the group has committed, or else at this consumer's own
        start. A lost slot falls back to that position, because the next reader begins there. If the
        application does not commit, slots that were read to the end stay finished.
        """
        for id_ in group.positions:
            found = group.slots(id_) or SlotPositions.unknown(id_)
            self.group[id_] = found.merged(self.group.get(id_, SlotPositions.unknown(id_)))
        lost: dict[int, Ranges] = {}
        for id_ in self.positions:
            after, left = given.get(id_, ()), leaving.get(id_, ())
            if (self.slots(id_), self.leaving.get(id_, ())) != (after, left):
                gone = difference(self._held(id_), union((*after, *left)))
                if not commits:
                    gone = difference(gone, self._slots[id_].finished())
                if ahead := intersection(gone, self.at(id_).exceeding(self.owed(id_))):
                    lost[id_] = ahead
                self._take(id_, after, left, keep_finished=not commits)
        self.mine, self.leaving = dict(given), dict(leaving)
        return lost

    def _held(self, id_: int) -> Ranges:
        return union((*self.slots(id_), *self.leaving.get(id_, ())))

    def held(self, id_: int) -> Ranges:
        """Return the slots of a segment that are read here, that leave, or that were read to the end here."""
        return union((*self._held(id_), *self._slots[id_].finished()))

    def _take(self, id_: int, after: Ranges, leaving: Ranges = (), *, keep_finished: bool = True) -> None:
        before, now = self.mine.get(id_, ()), self.at(id_)
        committed = self.group.get(id_, SlotPositions.unknown(id_))
        elsewhere = self._starts[id_].merged(committed)
        kept = intersection(self._held(id_), union((*after, *leaving)))
        done = now.finished() if keep_finished else ()
        if id_ in self.excluded:
            if committed.where(_is_known):
                # Another member reads what the start of this one excludes.
                del self.excluded[id_]
                done = ()
            else:
                kept = ALL
        self._slots[id_] = elsewhere.replaced(kept, now).replaced(done, now)
        self.began[id_] = elsewhere.replaced(kept, self.began[id_])
        self.mine[id_] = after
        if self._slots[id_].finished() == ALL:
            self.finished[id_] = None
        else:
            self.finished.pop(id_, None)
        if difference(after, before):
            self._begin_slots(id_, after)

    def _begin_slots(self, id_: int, slots: Ranges) -> None:
        """Find the place from which all slots of a segment are read."""
        known = self._slots[id_].where(_is_known)
        lowest = self._slots[id_].lowest_in(known)
        if lowest is not None:
            # The slots of a segment begin together, so a slot without a position begins at the lowest one.
            unknown = difference(ALL, known)
            self._slots[id_] = self._slots[id_].placed(unknown, lowest)
            self.began[id_] = self.began[id_].raised(unknown, lowest)
        left = difference(slots, self._slots[id_].finished())
        begin = self._slots[id_].lowest_in(left)
        if begin is not None:
            self.positions[id_] = MessageId(id_, *LATEST) if lowest is None else begin


def _is_known(id_: MessageId) -> bool:
    return id_.position != UNKNOWN
