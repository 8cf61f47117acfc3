"""Decides which consumers may read a segment of an ordered subscription. Pure.

A *member* is a registered consumer. The leader makes the `Roster` of each segment and decides about consumers
that attach (`admit`); an owner decides about attached consumers by the newest roster. A member keeps a
segment until a newer generation of the group takes it away.

Example: member `a` reads segment 3 in generation 5. An attachment of `a` to segment 3 with generation 5 is
admitted; one with generation 4 is refused, because its assignment is outdated, and so is one of the
unregistered consumer `b`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from anabranch.errors import ConsumerBusyError
from anabranch.metadata.records import ConsumerRecord, InitialPosition, SubscriptionKind, SubscriptionRecord
from anabranch.model.drains import union
from anabranch.model.ranges import HashRange
from anabranch.rights.names import is_foreign

ReadMode = Literal["nothing", "whole", "buckets"]
ReaderState = Literal["reads", "finishes", "gone"]


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """How one member reads one segment."""

    name: str
    since: int
    """The generation in which the member joined. Older attachments belong to a former member of that name."""
    mode: ReadMode = "nothing"
    generation: int = 0
    """The generation of the member's newest assignment when the roster was made; members attach with it."""
    principal: str = ""
    """The role of the member, or empty without authentication."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The readers of one segment. A roster of a higher generation replaces it."""

    generation: int
    members: tuple[RosterEntry, ...] = ()
    open: tuple[HashRange, ...] | None = None
    """The bucket hashes that may be delivered now, or None for all. Within a generation they only grow."""
    incarnation: int | None = None
    """The incarnation of the topic that the subscription belongs to."""

    def after(self, known: Roster | None) -> Roster:
        """Return this roster with the open buckets of a known one of the same generation added."""
        if known is None or known.generation != self.generation:
            return self
        if known.open is None or self.open is None:
            return replace(self, open=None)
        return replace(self, open=union((*self.open, *known.open)))

    def reads(self, name: str) -> bool:
        return any(member.name == name and member.mode != "nothing" for member in self.members)

    def admits(self, name: str, generation: int, *, by_buckets: bool, principal: str = "") -> bool:
        """Return whether the owner may let a member with this token attach without asking the leader."""
        mode = "buckets" if by_buckets else "whole"
        return any(
            member.name == name
            and member.generation == generation
            and member.mode == mode
            and not is_foreign(member.principal, principal)
            for member in self.members
        )

    def state_of(self, name: str, generation: int, *, by_buckets: bool) -> ReaderState:
        """Return how a consumer may use the segment.

        A consumer that finishes gets no new messages but may still acknowledge; one that is gone may not.
        """
        member = next((member for member in self.members if member.name == name), None)
        if member is None or generation < member.since:
            return "gone"
        return "reads" if member.mode == ("buckets" if by_buckets else "whole") else "finishes"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    """A consumer that wants to attach to a segment."""

    segment_id: int
    consumer_name: str
    kind: SubscriptionKind = "STREAM"
    start: InitialPosition = "earliest"
    """The initial position, in case the subscription is new."""
    generation: int | None = None
    """The generation of the consumer's assignment, or None if its client sends none."""
    opened_in: int | None = None
    """The incarnation of the topic in which it opened the subscription, which is not recreated there."""
    principal: str = ""
    """The role of the consumer, or empty without authentication."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a consumer that attaches. `member` is None for a consumer that never registered."""

    member: str | None = None
    generation: int = 0
    roster: Roster | None = None
    incarnation: int | None = None
    """The incarnation of the topic that the subscription belongs to."""


def admit(record: SubscriptionRecord, request: AttachRequest) -> Admission:
    """Let a consumer attach, or raise ConsumerBusyError. Without a generation, its name decides."""
    segment_id, consumer_name, generation = request.segment_id, request.consumer_name, request.generation
    name = member_name(record, segment_id, consumer_name)
    if name is None:
        if generation is not None or _derived_name(segment_id, consumer_name) is not None:
            raise ConsumerBusyError(f"consumer {consumer_name} is not registered; register it first")
        if record.consumers:
            raise ConsumerBusyError(
                f"registered consumers read the subscription; register {consumer_name} too"
            )
        return Admission()
    member = record.consumers[name]
    if is_foreign(member.principal, request.principal):
        raise ConsumerBusyError(f"the consumer name {name} belongs to another role; register another name")
    if generation is not None and generation != member.generation:
        raise ConsumerBusyError(
            f"generation {generation} of consumer {name} is outdated; the current one is {member.generation}"
        )
    # A client that reads only whole segments gives up when refused, so its consumer is admitted.
    retries = generation is not None or not member.whole
    if retries and _mode(member, segment_id) == "nothing":
        raise ConsumerBusyError(f"segment {segment_id} is not assigned to consumer {name}")
    return Admission(name, member.generation, roster(record, segment_id))


def member_name(record: SubscriptionRecord, segment_id: int, consumer_name: str) -> str | None:
    """Return the member that attaches as `consumer_name`. Some clients append the segment to the name."""
    if consumer_name in record.consumers:
        return consumer_name
    derived = _derived_name(segment_id, consumer_name)
    return derived if derived in record.consumers else None


def _derived_name(segment_id: int, consumer_name: str) -> str | None:
    suffix = f"-seg-{segment_id}"
    return consumer_name.removesuffix(suffix) if consumer_name.endswith(suffix) else None


def roster(record: SubscriptionRecord, segment_id: int) -> Roster:
    return Roster(
        record.generation,
        tuple(
            RosterEntry(name, member.joined, _mode(member, segment_id), member.generation, member.principal)
            for name, member in sorted(record.consumers.items())
        ),
    )


def _mode(member: ConsumerRecord, segment_id: int) -> ReadMode:
    for given in member.segments:
        if given.segment_id == segment_id:
            return "buckets" if given.shared else "whole"
    return "nothing"


def left(before: SubscriptionRecord, after: SubscriptionRecord) -> tuple[str, ...]:
    """Return the members that left, including those whose name another consumer has taken."""
    return tuple(
        name
        for name, member in sorted(before.consumers.items())
        if name not in after.consumers or after.consumers[name].joined != member.joined
    )


def reassigned(before: SubscriptionRecord, after: SubscriptionRecord) -> set[int]:
    """Return the segments that a member newly reads, no longer reads, or reads in another mode."""
    return {segment_id for _, _, segment_id, _ in _readers(before) ^ _readers(after)}


def _readers(record: SubscriptionRecord) -> set[tuple[str, int, int, bool]]:
    return {
        (name, member.joined, given.segment_id, given.shared)
        for name, member in record.consumers.items()
        for given in member.segments
    }
