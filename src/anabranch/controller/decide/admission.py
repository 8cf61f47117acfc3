"""Who may read a segment of an ordered subscription, and who may not any more.

Pure. The leader judges who attaches (`admit`) and tells owners of segments who reads them (`roster`); an
owner judges with the newest roster what becomes of the consumers that are attached already. A *member* is a
registered consumer. What a member was given holds until a newer generation of the group takes it away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from anabranch.errors import ConsumerBusyError
from anabranch.metadata.records import ConsumerRecord, SubscriptionRecord
from anabranch.model.drains import union
from anabranch.model.ranges import HashRange

ReadMode = Literal["nothing", "whole", "buckets"]
ReaderState = Literal["reads", "finishes", "gone"]


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """What one member has of one segment."""

    name: str
    since: int
    """Attachments of older generations are those of a namesake that was a member before it."""
    share: ReadMode = "nothing"
    generation: int = 0
    """Of the member's newest assignment when the roster was made: the token that it attaches with."""


@dataclass(frozen=True, slots=True)
class Roster:
    """Who reads one segment, as the group's generation says; a higher one replaces it."""

    generation: int
    members: tuple[RosterEntry, ...] = ()
    open: tuple[HashRange, ...] | None = None
    """The bucket hashes that may be delivered now; None when all may. They become more in a generation."""
    incarnation: int | None = None
    """Of the topic that the subscription belongs to."""

    def widened(self, known: Roster) -> Roster:
        """This roster, where another of the same generation may have been newer."""
        if known.open is None or self.open is None:
            return replace(self, open=None)
        return replace(self, open=union((*self.open, *known.open)))

    def reads(self, name: str) -> bool:
        """Whether a member reads any of the segment."""
        return any(member.name == name and member.share != "nothing" for member in self.members)

    def admits(self, name: str, generation: int, *, by_buckets: bool) -> bool:
        """Whether the owner may let this member attach without asking the leader.

        The generation of the consumer's assignment is its fencing token. An older roster does not know the
        token yet; a newer one knows a newer token, and the leader refuses the old one.
        """
        mode = "buckets" if by_buckets else "whole"
        return any(
            member.name == name and member.generation == generation and member.share == mode
            for member in self.members
        )

    def standing(self, name: str, generation: int, *, by_buckets: bool) -> ReaderState:
        """What a consumer that was let in with this generation may still do.

        One that *finishes* gets nothing new but may acknowledge what it has; one that is *gone* may not.
        """
        member = next((member for member in self.members if member.name == name), None)
        if member is None or generation < member.since:
            return "gone"
        return "reads" if member.share == ("buckets" if by_buckets else "whole") else "finishes"


@dataclass(frozen=True, slots=True)
class Admission:
    """A consumer may attach; without a member it never registered and nobody says what it reads."""

    member: str | None = None
    generation: int = 0
    roster: Roster | None = None
    incarnation: int | None = None
    """Of the topic that the subscription belongs to."""


def admit(
    record: SubscriptionRecord, segment_id: int, consumer_name: str, generation: int | None
) -> Admission:
    """Let a consumer attach to a segment, or raise ConsumerBusyError.

    Without a generation it is judged by its name alone. A client that reads segments only whole gives up when
    it is refused, so a member of that kind is let in anyhow and finishes; it hears in time what it reads.
    """
    name = member_name(record, segment_id, consumer_name)
    if name is None:
        if generation is not None or _derived_name(segment_id, consumer_name) is not None:
            raise ConsumerBusyError(f"consumer {consumer_name} is not registered; it has to register first")
        if record.consumers:
            raise ConsumerBusyError(f"registered consumers read the subscription; {consumer_name} is none")
        return Admission()
    member = record.consumers[name]
    if generation is not None and generation != member.generation:
        raise ConsumerBusyError(
            f"generation {generation} of consumer {name} is over; it has generation {member.generation}"
        )
    patient = generation is not None or not member.whole
    if patient and _share(member, segment_id) == "nothing":
        raise ConsumerBusyError(f"segment {segment_id} is not assigned to consumer {name}")
    return Admission(name, member.generation, roster(record, segment_id))


def member_name(record: SubscriptionRecord, segment_id: int, consumer_name: str) -> str | None:
    """The member that a consumer of a segment is; other clients than ours add the segment to its name."""
    if consumer_name in record.consumers:
        return consumer_name
    derived = _derived_name(segment_id, consumer_name)
    return derived if derived in record.consumers else None


def _derived_name(segment_id: int, consumer_name: str) -> str | None:
    suffix = f"-seg-{segment_id}"
    return consumer_name.removesuffix(suffix) if consumer_name.endswith(suffix) else None


def roster(record: SubscriptionRecord, segment_id: int) -> Roster:
    """Who reads a segment now."""
    return Roster(
        record.generation,
        tuple(
            RosterEntry(name, member.joined, _share(member, segment_id), member.generation)
            for name, member in sorted(record.consumers.items())
        ),
    )


def _share(member: ConsumerRecord, segment_id: int) -> ReadMode:
    for given in member.segments:
        if given.segment_id == segment_id:
            return "buckets" if given.shared else "whole"
    return "nothing"


def left(before: SubscriptionRecord, after: SubscriptionRecord) -> tuple[str, ...]:
    """The members that are none any more, also if a namesake took their place."""
    return tuple(
        name
        for name, member in sorted(before.consumers.items())
        if name not in after.consumers or after.consumers[name].joined != member.joined
    )


def taken(before: SubscriptionRecord, after: SubscriptionRecord) -> tuple[int, ...]:
    """The segments that somebody may not read any more as before."""
    lost: set[int] = set()
    gone = left(before, after)
    for name, member in before.consumers.items():
        kept = () if name in gone else after.consumers[name].segments
        lost.update(given.segment_id for given in member.segments if given not in kept)
    return tuple(sorted(lost))


def given(before: SubscriptionRecord, after: SubscriptionRecord) -> tuple[int, ...]:
    """The segments that a member reads now and did not read, or not in this mode, before."""
    return taken(after, before)
