"""The request of a consumer that registers with the leader of its topic. Pure.

Example: instance 9 registers with attempt 1, loses its connection and registers with attempt 2. The second
request `returns` to the first, so the consumer gets its name back. If the first request arrives late, it does
not return to the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.metadata.records import InitialPosition, RangeRecord, SubscriptionKind
from anabranch.rights.names import is_foreign


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """A registering consumer, as it describes itself."""

    kind: SubscriptionKind = "STREAM"
    start: InitialPosition | None = None
    """The position of a new subscription. Without one, the first consumer with a position sets it."""
    whole: bool = False
    """Whether its client reads only whole segments, not buckets."""
    finished: tuple[int, ...] | None = None
    """In a checkpoint group: the segments it has read to the end; None if its client does not report them."""
    partly_finished: dict[int, tuple[RangeRecord, ...]] = field(default_factory=dict)
    """In a checkpoint group: the slots it has read to the end, of segments that it has read in part."""
    positions: bytes | None = None
    """In a checkpoint group: a checkpoint of what it has committed; None if its client has no buckets."""
    generation: int = -1
    """The generation of the assignment that `positions` belongs to."""
    commits: bool = False
    """In a checkpoint group: whether its application commits positions."""
    releases: bool = False
    """In a checkpoint group: whether `positions` covers all that it read of the slots that leave it."""
    claims: int | None = None
    """In a checkpoint group: it no longer waits for slots that others have been leaving since this
    generation."""
    address: str = ""
    instance: int | None = None
    """Distinguishes it from other consumers of its name, or None if its client sends no instance."""
    attempt: int = 0
    """Increases each time the same instance registers on another connection."""
    opened_in: int | None = None
    """The incarnation of the topic in which it opened the subscription, which is not recreated there."""
    principal: str = ""
    """The role that the consumer's name belongs to; empty without authentication."""

    def returns(self, former: RegistrationRequest) -> bool:
        """Return whether this request is by the consumer of the `former` one, and not an older one."""
        same = self.instance is not None and self.instance == former.instance
        return same and self.attempt >= former.attempt

    def is_foreign_to(self, former: RegistrationRequest) -> bool:
        """Return whether the name of the `former` request belongs to another role."""
        return is_foreign(former.principal, self.principal)


PLAIN_REQUEST = RegistrationRequest()
