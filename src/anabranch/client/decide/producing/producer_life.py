"""The life of a producer of one segment: a state, a table of transitions, and their effects. Pure.

A broker's word that the segment is sealed is provisional, because the seal may still fail; a layout without
the segment is final. In both cases the producer settles: it finds out which of the sent entries the segment
has stored. The shell in `produce/segment_producer.py` carries out the effects and reports their results.

Example: entries 5, 6 and 7 have no receipt when the broker says that the segment is sealed. ATTACHED becomes
SETTLING: the producer gives its registration back and asks what is stored. The answer is 6, so 5 and 6 are
done. SETTLING becomes SETTLED, which is reported. The layout arrives and lists two children: SETTLED becomes
LEFT, and entry 7 is taken back and routed to one of them. Without a layout within a second, SETTLED becomes
ATTACHING again, and entry 7 is sent to the same segment.
"""

from __future__ import annotations

from enum import Enum, auto

from anabranch.client.decide.connecting.refused_roles import is_refused_role
from anabranch.errors import AnabranchError, ProducerBusyError, TopicNotFoundError, TopicTerminatedError


class ProducerState(Enum):
    ATTACHING = auto()
    """Looking for the segment's owner and registering there."""
    ATTACHED = auto()
    """Registered: entries can be sent."""
    LAST_RECEIPTS = auto()
    """Still registered, but the layout says that the segment is sealed; receipts may still come."""
    SETTLING = auto()
    """The broker says that the segment is sealed; the producer asks which entries are stored."""
    SETTLED = auto()
    """The answer is known; the producer waits for the layout to confirm the seal."""
    LEAVING = auto()
    """As SETTLING, and the layout has confirmed the seal."""
    LEFT = auto()
    """Settled, and the layout has confirmed the seal."""
    FAILED = auto()
    """The broker refused the producer for good."""
    CLOSED = auto()


class ProducerEvent(Enum):
    ACCEPTED = auto()
    """The owner has registered the producer."""
    UNREACHABLE = auto()
    """An attempt to register or to settle failed and may succeed later."""
    REFUSED = auto()
    """The owner refused the registration for good."""
    DETACHED = auto()
    """The registration is gone, or its connection, or the two ends disagree about the next receipt."""
    SEND_REFUSED = auto()
    """The owner refused an entry and may take it later."""
    SEALED_BY_BROKER = auto()
    SEALED_AND_ANSWERED = auto()
    """As SEALED_BY_BROKER, and entries without a receipt are known not to be stored."""
    SEALED_BY_LAYOUT = auto()
    RECEIPTS_ENDED = auto()
    """Every entry that was sent has its receipt, or the others are overdue."""
    STORED_KNOWN = auto()
    """The segment said which entries it has stored, or cannot say so any more."""
    LAYOUT_OVERDUE = auto()
    """The layout did not confirm the seal in time: the seal may have failed."""
    CLOSED = auto()


class ProducerEffect(Enum):
    """Orders to the shell. Of ATTACH, ASK_STORED and AWAIT_LAYOUT, a later order replaces an earlier one."""

    ATTACH = auto()
    SEND = auto()
    RELEASE = auto()
    """Give the registration back; unanswered entries count as unsent again."""
    AWAIT_RECEIPTS = auto()
    ASK_STORED = auto()
    AWAIT_LAYOUT = auto()
    REPORT_SETTLED = auto()
    REPORT_LEFT = auto()
    REPORT_FAILED = auto()
    STOP = auto()
    """Stop the order under way."""


_S, _E, _F = ProducerState, ProducerEvent, ProducerEffect

TRANSITIONS: dict[tuple[ProducerState, ProducerEvent], tuple[ProducerState, tuple[ProducerEffect, ...]]] = {
    (_S.ATTACHING, _E.ACCEPTED): (_S.ATTACHED, (_F.SEND,)),
    (_S.ATTACHING, _E.UNREACHABLE): (_S.ATTACHING, (_F.ATTACH,)),
    (_S.ATTACHING, _E.DETACHED): (_S.ATTACHING, (_F.ATTACH,)),
    (_S.ATTACHING, _E.REFUSED): (_S.FAILED, (_F.REPORT_FAILED,)),
    (_S.ATTACHING, _E.SEALED_BY_BROKER): (_S.SETTLING, (_F.ASK_STORED,)),
    (_S.ATTACHING, _E.SEALED_BY_LAYOUT): (_S.LEAVING, (_F.ASK_STORED,)),
    (_S.ATTACHED, _E.DETACHED): (_S.ATTACHING, (_F.RELEASE, _F.ATTACH)),
    (_S.ATTACHED, _E.SEND_REFUSED): (_S.ATTACHING, (_F.RELEASE, _F.ATTACH)),
    (_S.ATTACHED, _E.SEALED_BY_BROKER): (_S.SETTLING, (_F.RELEASE, _F.ASK_STORED)),
    (_S.ATTACHED, _E.SEALED_AND_ANSWERED): (_S.SETTLED, (_F.RELEASE, _F.REPORT_SETTLED, _F.AWAIT_LAYOUT)),
    (_S.ATTACHED, _E.SEALED_BY_LAYOUT): (_S.LAST_RECEIPTS, (_F.AWAIT_RECEIPTS,)),
    (_S.LAST_RECEIPTS, _E.RECEIPTS_ENDED): (_S.LEAVING, (_F.RELEASE, _F.ASK_STORED)),
    (_S.LAST_RECEIPTS, _E.DETACHED): (_S.LEAVING, (_F.RELEASE, _F.ASK_STORED)),
    (_S.LAST_RECEIPTS, _E.SEND_REFUSED): (_S.LEAVING, (_F.RELEASE, _F.ASK_STORED)),
    (_S.LAST_RECEIPTS, _E.SEALED_AND_ANSWERED): (_S.LEFT, (_F.RELEASE, _F.REPORT_LEFT, _F.REPORT_SETTLED)),
    (_S.LAST_RECEIPTS, _E.SEALED_BY_BROKER): (_S.LEAVING, (_F.RELEASE, _F.ASK_STORED)),
    (_S.SETTLING, _E.UNREACHABLE): (_S.SETTLING, (_F.ASK_STORED,)),
    (_S.SETTLING, _E.SEALED_BY_LAYOUT): (_S.LEAVING, ()),
    (_S.SETTLING, _E.STORED_KNOWN): (_S.SETTLED, (_F.REPORT_SETTLED, _F.AWAIT_LAYOUT)),
    (_S.SETTLED, _E.SEALED_BY_LAYOUT): (_S.LEFT, (_F.STOP, _F.REPORT_LEFT)),
    (_S.SETTLED, _E.LAYOUT_OVERDUE): (_S.ATTACHING, (_F.ATTACH,)),
    (_S.LEAVING, _E.UNREACHABLE): (_S.LEAVING, (_F.ASK_STORED,)),
    (_S.LEAVING, _E.STORED_KNOWN): (_S.LEFT, (_F.REPORT_LEFT, _F.REPORT_SETTLED)),
    **{(state, _E.CLOSED): (_S.CLOSED, (_F.STOP,)) for state in _S},
}
"""An event that has no line for the present state is late and changes nothing."""


class ProducerLife:
    """The present state of one producer."""

    def __init__(self) -> None:
        self.state = ProducerState.ATTACHING
        self.failures = 0
        """Attempts that failed in a row; the shell waits longer after each."""
        self.refusals = 0
        """Refused entries in a row. The shell sets it to 0 when the segment has stored one."""

    @property
    def settled(self) -> bool:
        """Whether the entries that are left are known not to be stored, or in doubt for good."""
        return self.state in (ProducerState.SETTLED, ProducerState.LEFT)

    def handle(self, event: ProducerEvent) -> tuple[ProducerEffect, ...]:
        """Move to the next state and return the effects to carry out, in order."""
        step = TRANSITIONS.get((self.state, event))
        if step is None:
            return ()
        if event is ProducerEvent.SEND_REFUSED:
            # A segment that refuses entries again and again accepts the registration each time.
            self.refusals += 1
            self.failures = self.refusals
        else:
            self.failures = self.failures + 1 if event is ProducerEvent.UNREACHABLE else 0
        self.state, effects = step
        return effects


def registration_failed(error: Exception, *, may_be_held: bool, role_ends: bool) -> ProducerEvent:
    """Return the event that a failed attempt to register amounts to.

    `may_be_held` tells whether the broker may hold an earlier registration of the producer, `role_ends`
    whether a refusal of the role is final, if the error is one.
    """
    if is_refused_role(error):
        return ProducerEvent.REFUSED if role_ends else ProducerEvent.UNREACHABLE
    if isinstance(error, TopicTerminatedError):
        return ProducerEvent.SEALED_BY_BROKER
    if not isinstance(error, AnabranchError) or error.retryable or isinstance(error, TopicNotFoundError):
        # The layout watch, not the producer of one segment, decides whether the topic is gone.
        return ProducerEvent.UNREACHABLE
    if isinstance(error, ProducerBusyError) and may_be_held:
        # After a lost connection the broker may still hold the registration of the old connection.
        return ProducerEvent.UNREACHABLE
    return ProducerEvent.REFUSED
