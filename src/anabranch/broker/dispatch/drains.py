"""The parts of a sealed log that a subscription has drained, and when its owner reports them.

`PendingBuckets` counts the entries of each bucket that are not acknowledged. `DrainMachine` is the life of
the report: events in, at most one effect out. The result of an effect counts only if the cursor was not moved
meanwhile, because a moved cursor makes drained buckets pending again.

For example, a sealed log has buckets 0-99 and 100-65535 (splits (100,)), and entries 4 with hashes 7 to 8,
and 5 with hash 300, are pending. Nothing is drained. Entry 4 is acknowledged: `drained` returns the range
0-99, so the leader may open that range in the children while entry 5 is stuck. A batch without a stamp counts
for both buckets.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from google.protobuf.message import DecodeError
from pyroaring import BitMap64

from anabranch.errors import RemoteProtocolError
from anabranch.model.acks import AckSet
from anabranch.model.drains import Ranges, union
from anabranch.model.hashing import bucket_index, bucket_ranges
from anabranch.model.ranges import LAST_SLOT
from anabranch.protocol.frames import metadata_span
from anabranch.protocol.outer import read_outer
from anabranch.protocol.pb import pulsar_pb2 as pb

_EVERYWHERE: Final = -1
"""Stands for all buckets."""


class PendingBuckets:
    """The pending entries of a sealed log by bucket; a few bits for each entry."""

    def __init__(self, splits: tuple[int, ...]) -> None:
        self._splits = splits
        self._ranges = bucket_ranges(splits)
        self._pending: dict[int, BitMap64] = {}

    def add(self, ordinal: int, slots: tuple[int, int] | None) -> None:
        """Take a pending entry, with its lowest and highest slot; None counts for all buckets."""
        low, high = 0, len(self._ranges) - 1
        if slots is not None:
            low, high = (bucket_index(self._splits, slot) for slot in slots)
        if high - low == len(self._ranges) - 1:
            # Noted once: a log may have very many entries of all buckets.
            low = high = _EVERYWHERE
        for at in range(low, high + 1):
            self._bucket(at).add(ordinal)

    def add_all(self, at: int, ordinals: BitMap64) -> None:
        """Take many pending entries of the bucket with this index."""
        self._bucket(at).update(ordinals)

    def drained(self, acks: AckSet) -> Ranges:
        """Return the slots of the buckets whose entries are all acknowledged; the set only grows."""
        for at, ordinals in list(self._pending.items()):
            if ordinals.min() in acks:
                acks.keep_pending(ordinals)
                if not ordinals:
                    del self._pending[at]
        if _EVERYWHERE in self._pending:
            return ()
        return union(part for at, part in enumerate(self._ranges) if at not in self._pending)

    def _bucket(self, at: int) -> BitMap64:
        found = self._pending.get(at)
        if found is None:
            found = self._pending[at] = BitMap64()
        return found


class DrainState(Enum):
    """How much the owner knows of the pending entries, and which effect is under way."""

    UNKNOWN = auto()
    """The buckets of the pending entries are not known."""
    READING = auto()
    """The pending entries are being read for their buckets."""
    KNOWN = auto()
    """The buckets are known, and nothing was acknowledged since the last report."""
    LINGERING = auto()
    """A report of drained buckets waits for more buckets to drain."""
    LINGERING_AGAIN = auto()
    """As LINGERING, and acknowledgements came since, so another report follows."""
    CONFIRMING = auto()
    """All entries are acknowledged, and the acknowledgements are being made durable."""
    REPORTED = auto()
    """The leader was notified that the whole log is drained."""


AT_REST: Final = frozenset((DrainState.UNKNOWN, DrainState.KNOWN, DrainState.REPORTED))
"""The states in which no effect is under way."""


class DrainEvent(Enum):
    """Something that happened to the log, its cursor, or an effect."""

    ADVANCED = auto()
    """A consumer acknowledged entries, or the subscription read on."""
    END_READ = auto()
    """The subscription has read the whole log."""
    ALL_ACKNOWLEDGED = auto()
    PENDING_READ = auto()
    PENDING_UNREADABLE = auto()
    """Reading was given up; the next END_READ tries again."""
    BUCKETS_REPORTED = auto()
    """The report of drained buckets ended, sent or with nothing to send."""
    END_DURABLE = auto()
    END_NOT_DURABLE = auto()


class DrainEffect(Enum):
    """An order to the shell around the machine."""

    READ_PENDING = auto()
    REPORT_BUCKETS = auto()
    MAKE_END_DURABLE = auto()
    REPORT_END = auto()


_S, _E, _F = DrainState, DrainEvent, DrainEffect
_Step = tuple[DrainState, DrainEffect | None]

TRANSITIONS: Final[dict[tuple[DrainState, DrainEvent], _Step]] = {
    (_S.UNKNOWN, _E.END_READ): (_S.READING, _F.READ_PENDING),
    (_S.READING, _E.PENDING_READ): (_S.LINGERING, _F.REPORT_BUCKETS),
    (_S.READING, _E.PENDING_UNREADABLE): (_S.UNKNOWN, None),
    (_S.KNOWN, _E.ADVANCED): (_S.LINGERING, _F.REPORT_BUCKETS),
    (_S.LINGERING, _E.ADVANCED): (_S.LINGERING_AGAIN, None),
    (_S.LINGERING, _E.BUCKETS_REPORTED): (_S.KNOWN, None),
    (_S.LINGERING_AGAIN, _E.BUCKETS_REPORTED): (_S.LINGERING, _F.REPORT_BUCKETS),
    **{
        (state, _E.ALL_ACKNOWLEDGED): (_S.CONFIRMING, _F.MAKE_END_DURABLE)
        for state in _S
        if state not in (_S.CONFIRMING, _S.REPORTED)
    },
    (_S.CONFIRMING, _E.END_DURABLE): (_S.REPORTED, _F.REPORT_END),
    (_S.CONFIRMING, _E.END_NOT_DURABLE): (_S.UNKNOWN, None),
}
"""An event that is missing here changes nothing."""


class DrainMachine:
    """The state of one subscription on one sealed log."""

    def __init__(self) -> None:
        self.state = DrainState.UNKNOWN
        self.moves = 0
        """How often the cursor was moved."""
        self.pending: PendingBuckets | None = None
        self.reported: Ranges = ()

    def handle(self, event: DrainEvent) -> DrainEffect | None:
        """Go on to the next state; the effect to carry out, if any."""
        self.state, effect = TRANSITIONS.get((self.state, event), (self.state, None))
        return effect

    def result(self, moves: int, event: DrainEvent) -> DrainEffect | None:
        """Take the event that an effect ended with, unless the cursor was moved since the effect began."""
        return self.handle(event) if moves == self.moves else None

    def cursor_moved(self) -> None:
        """Start again, because acknowledged entries may be pending again."""
        self.moves += 1
        self.state = DrainState.UNKNOWN
        self.pending = None
        self.reported = ()


def slots_of(entry: bytes) -> tuple[int, int] | None:
    """Return the lowest and highest bucket hash among an entry's keys; None for a batch that does not say."""
    try:
        start, end = metadata_span(entry)
        metadata = pb.MessageMetadata.FromString(entry[start:end])
        low = high = metadata.entry_hash_min
        if low or metadata.HasField("entry_hash_min"):
            if metadata.HasField("entry_hash_max"):
                high = metadata.entry_hash_max
        elif metadata.HasField("num_messages_in_batch"):
            return None
        else:
            low = high = read_outer(entry).bucket_hash
    except (RemoteProtocolError, DecodeError):
        return None
    # An impossible stamp says nothing about the keys.
    return (low, high) if low <= high <= LAST_SLOT else None
