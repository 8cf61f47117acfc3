"""A member of a checkpoint group: what it tells the leader, and what the leader gives to it.

The leader assigns segments and buckets, and knows the positions that members have committed. A member reports
what it has finished until its application commits for the first time. From then on only committed positions
count, so that no other member continues after messages whose effects may be lost with this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.client.consume.segments.attachment import CheckpointOptions
from anabranch.client.decide.consuming.member_positions import MemberPositions
from anabranch.client.net.closing import Deadline
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.topics.registration import GroupReport, Registration, RegistrationOptions
from anabranch.errors import (
    AnabranchError,
    ConsumerBusyError,
    InvalidConfigurationError,
    OperationTimeoutError,
    RemoteProtocolError,
)
from anabranch.model.assignment import UNCOUNTED, Assignment
from anabranch.model.checkpoint import Checkpoint
from anabranch.model.drains import ALL, Ranges, difference, union
from anabranch.model.ids import LATEST, MessageId
from anabranch.model.slot_positions import SlotPositions
from anabranch.protocol.pb import pulsar_pb2 as pb

HANDOVER_S: Final = 30.0
"""How long a member waits for slots that other members have to commit first."""


def slots_given(assignment: Assignment) -> dict[int, Ranges]:
    """Return the slots of each assigned segment."""
    return {
        segment.segment_id: union(segment.bucket_ranges) if segment.bucket_ranges else ALL
        for segment in assignment.segments
    }


def no_member() -> InvalidConfigurationError:
    """Return the error of a commit outside a group."""
    return InvalidConfigurationError("only members of a group commit")


class GroupMember:
    """The registration of one member, whose positions are `read`."""

    def __init__(
        self,
        pool: ConnectionPool,
        options: CheckpointOptions,
        read: MemberPositions,
        assigned: Callable[[Assignment], None],
        refused: Callable[[AnabranchError], None],
    ) -> None:
        name, group = options.name, options.group
        assert name is not None
        assert group is not None
        self._read = read
        self._generation = UNCOUNTED
        self._commits = False
        self._noted: dict[int, SlotPositions] = {}
        """Positions that the application commits, of the slots that this generation gave to the member."""
        self._moved: dict[int, Ranges] = {}
        """Slots that other members got although this one had not committed all that it read of them."""
        self._claims: int | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._had: dict[int, None] = {}
        """The segments of which this member has read."""
        self._begun: dict[tuple[int, int], None] = {}
        """Segments whose starts were reported, each with the generation of the assignment."""
        latest = pb.CommandSubscribe.Latest
        request = RegistrationOptions(options.topic, group, name, pb.CHECKPOINT, latest, self._report)
        self.registration = Registration(pool, request, assigned, refused)

    @property
    def known(self) -> dict[int, None]:
        """The segments that this member has read, or need not read."""
        return {**self._had, **self._read.finished}

    def changed(self, assignment: Assignment) -> list[int]:
        """Return the segments whose slots an assignment changes."""
        return self._read.changed(slots_given(assignment))

    def take(self, assignment: Assignment) -> None:
        """Read what the leader has assigned, from the positions of the group on."""
        given = slots_given(assignment)
        try:
            group = Checkpoint.from_bytes(assignment.positions) if assignment.positions else Checkpoint()
        except InvalidConfigurationError as error:
            raise RemoteProtocolError(f"the broker sent impossible positions: {error}") from error
        if assignment.generation != self._generation:
            self._generation, self._noted = assignment.generation, {}
        leaving = {id_: union(slots) for id_, slots in assignment.leaving}
        self._moved.update(self._read.assign(given, leaving, group, commits=self._commits))
        self._had.update(dict.fromkeys(sorted(given)))
        if self._note_ends() or (leaving and self._releases()):
            self.registration.report_soon()
        self._await_slots(assignment)

    def _await_slots(self, assignment: Assignment) -> None:
        """Claim slots that other members leave, if they take too long to commit."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if assignment.awaits:
            self._waiting = asyncio.get_running_loop().call_later(HANDOVER_S, self._claim)

    def _claim(self) -> None:
        self._claims = self._generation
        self.registration.report_soon()

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def _releases(self) -> bool:
        """Return whether all that this member read of slots that it must give up is committed or noted."""
        known = (id_ for id_ in self._read.leaving if id_ in self._read.positions)
        unknown = SlotPositions.unknown
        return not any(self._read.uncommitted(id_, self._noted.get(id_, unknown(id_))) for id_ in known)

    def report_starts(self) -> None:
        """Tell the leader where this member began reading slots that had no position in the group."""
        begun = [id_ for id_ in self._read.positions if self._read.unknown_to_group(id_)]
        new = [id_ for id_ in begun if (id_, self._generation) not in self._begun]
        if new:
            self._begun.update(dict.fromkeys((id_, self._generation) for id_ in new))
            self.registration.report_soon()

    def report_finished(self) -> None:
        """Tell the leader what is finished; if the application commits, only what it has committed."""
        if not self._commits or self._note_ends():
            self.registration.report_soon()

    def _note_ends(self) -> bool:
        """Commit the ends of segments whose messages are all committed; no message may follow."""
        ended = self._read.ended() if self._commits else {}
        for id_, slots in ended.items():
            noted = self._noted.get(id_, SlotPositions.unknown(id_))
            self._noted[id_] = noted.placed(slots, MessageId(id_, *LATEST))
        return bool(ended)

    async def commit(self, checkpoint: Checkpoint, limit_s: float) -> None:
        """Return when the leader has stored all positions; ConsumerBusyError if a bucket has moved.

        Raises OperationTimeoutError if the leader has not answered within the limit.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidConfigurationError(f"commit takes a Checkpoint, not {checkpoint!r}")
        self._commits = True
        if not await Deadline(limit_s).allow(self._commit(checkpoint)):
            raise OperationTimeoutError(f"the checkpoint is not committed after {limit_s:g} s")

    async def _commit(self, checkpoint: Checkpoint) -> None:
        while True:
            self._check_held(checkpoint)
            for id_ in checkpoint.positions:
                given, slots = checkpoint.slots(id_), self._held(id_)
                if given is not None and slots:
                    self._noted[id_] = SlotPositions.unknown(id_).replaced(slots, given)
            await self.registration.report()
            if not self._ahead(checkpoint):
                if self._note_ends():
                    self.registration.report_soon()
                return
            # The leader has stored nothing, because the assignment changed; it may still give the buckets.

    def _check_held(self, checkpoint: Checkpoint) -> None:
        for id_, slots in self._ahead(checkpoint).items():
            if moved := difference(slots, self._held(id_)):
                self._moved[id_] = moved
        if self._moved:
            moved_text = "; ".join(
                f"{', '.join(map(str, slots))} of segment {id_}" for id_, slots in self._moved.items()
            )
            raise ConsumerBusyError(
                f"buckets moved to another member before they were committed: {moved_text}; "
                "open the consumer again to continue at the last committed positions"
            )

    def _held(self, id_: int) -> Ranges:
        """Return the slots of a segment that this member may commit."""
        return self._read.held(id_) if id_ in self._read.positions else ()

    def _ahead(self, checkpoint: Checkpoint) -> dict[int, Ranges]:
        """Return the slots that this member has read further than the group knows."""
        found: dict[int, Ranges] = {}
        for id_ in self._had:
            given, group = checkpoint.slots(id_), self._read.group.get(id_)
            if given is None or id_ not in self._read.positions:
                continue
            if group is None and given.lowest.position == LATEST:
                continue  # The leader dropped a segment that the whole group has finished.
            behind = given.exceeding(self._read.owed(id_))
            if behind:
                found[id_] = behind
        return found

    def _report(self) -> GroupReport:
        read = self._read
        slots = {}
        for id_ in read.positions:
            if self._held(id_):
                noted = self._noted.get(id_, SlotPositions.unknown(id_))
                slots[id_] = read.began[id_].merged(noted)
        positions = Checkpoint(parts=slots).to_bytes() if slots else b""
        finished = read.finished_before() if self._commits else tuple(read.finished)
        parts = {} if self._commits else read.finished_parts()
        claims, self._claims = self._claims, None
        return GroupReport(
            finished, parts, positions, self._generation, self._commits, self._releases(), claims
        )
