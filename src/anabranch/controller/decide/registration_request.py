"""The request of a consumer that registers with the leader of its topic."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.metadata.records import InitialPosition, RangeRecord, SubscriptionKind
from anabranch.rights.names import is_foreign


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """A registering consumer, as it describes itself."""

    kind: SubscriptionKind = "STREAM"
    start: InitialPosition | None = None
    """The position of a new subscription; without one, the first consumer with a position gives it one."""
    whole: bool = False
    """Whether its client reads only whole segments, not buckets."""
    finished: tuple[int, ...] | None = None
    """In a checkpoint group: the segments it has read to the end; None if its client does not report them."""
    partly_finished: dict[int, tuple[RangeRecord, ...]] = field(default_factory=dict)
    """In a checkpoint group: the slots it has read to the end, of segments that it has read in part."""
    positions: bytes | None = None
    """In a checkpoint group: a checkpoint of what it has committed; None if its client knows no buckets."""
    generation: int = -1
    """The generation of the assignment that `positions` belong to."""
    commits: bool = False
    """In a checkpoint group: whether its application commits positions."""
    releases: bool = False
    """In a checkpoint group: whether `positions` cover all that it read of the slots that leave it."""
    claims: int | None = None
    """In a checkpoint group: it waits no longer for slots that others leave since this generation."""
    address: str = ""
    instance: int | None = None
    """Distinguishes it from other consumers of its name; None if its client sends none."""
    attempt: int = 0
    """Rises each time the same instance registers on another connection."""
    opened_in: int | None = None
    """The incarnation of the topic in which it opened the subscription, which is not recreated there."""
    principal: str = ""
    """The role that the consumer's name belongs to; empty without authentication."""

    def returns(self, former: RegistrationRequest) -> bool:
        """Whether the consumer of the `former` request has come back with this one, and not the reverse."""
        same = self.instance is not None and self.instance == former.instance
        return same and self.attempt >= former.attempt

    def is_foreign_to(self, former: RegistrationRequest) -> bool:
        """Whether the name of the `former` request belongs to another role."""
        return is_foreign(former.principal, self.principal)


PLAIN_REQUEST = RegistrationRequest()
