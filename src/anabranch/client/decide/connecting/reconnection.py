"""The life of a segment's consumer, a registration or a layout watch: it attaches until it ends. Pure.

Example: an attachment is lost and two attempts fail. ATTACHED becomes ATTACHING, then WAITING with 1 failure,
ATTACHING, WAITING with 2 failures, and the pause is longer. The third attempt succeeds: ATTACHED, 0 failures.
If the connection is lost again during an attempt, the attempt is OUTDATED, and another one follows its
success.
"""

from __future__ import annotations

from enum import Enum


class ReconnectPhase(Enum):
    """The phases of an attachment; the value says the work of the shell."""

    ATTACHING = "makes an attempt"
    OUTDATED = "makes an attempt whose success is out of date already: another one follows at once"
    ATTACHED = "waits for an event"
    WAITING = "pauses before the next attempt"
    ENDED = "does nothing any more"


class ReconnectEvent(Enum):
    BEGUN = "an attempt begins; earlier events do not make it out of date"
    ATTACHED = "the attempt succeeded"
    FAILED = "the attempt failed and may succeed later"
    RETRIED = "the pause is over, or the reason for it"
    LOST = "the connection was lost, the broker ended the attachment or has to be told something new"
    REFUSED = "the broker refused a request, and attaching again at once would not help"
    ENDED = "the application closed the attachment, or the broker refused it for good"


_ATTACHING, _OUTDATED = ReconnectPhase.ATTACHING, ReconnectPhase.OUTDATED
_ATTACHED, _WAITING = ReconnectPhase.ATTACHED, ReconnectPhase.WAITING

_TRANSITIONS = {
    (_ATTACHING, ReconnectEvent.ATTACHED): _ATTACHED,
    (_ATTACHING, ReconnectEvent.FAILED): _WAITING,
    (_ATTACHING, ReconnectEvent.LOST): _OUTDATED,
    (_OUTDATED, ReconnectEvent.BEGUN): _ATTACHING,
    (_OUTDATED, ReconnectEvent.ATTACHED): _ATTACHING,
    (_OUTDATED, ReconnectEvent.FAILED): _WAITING,
    (_ATTACHED, ReconnectEvent.LOST): _ATTACHING,
    (_ATTACHED, ReconnectEvent.REFUSED): _WAITING,
    (_WAITING, ReconnectEvent.RETRIED): _ATTACHING,
}
"""Every other event leaves the phase as it is, except that ENDED ends each phase."""


class Reconnection:
    """The phase of one attachment, and the failures in a row that the next pause depends on."""

    def __init__(self) -> None:
        self.phase = ReconnectPhase.ATTACHING
        self.failures = 0
        self.refusals = 0
        """Refused requests in a row. The shell sets it to 0 when the broker accepts one."""

    @property
    def ended(self) -> bool:
        return self.phase is ReconnectPhase.ENDED

    def handle(self, event: ReconnectEvent) -> bool:
        """Enter the phase that follows an event; True when it differs from the phase before."""
        before = self.phase
        if event is ReconnectEvent.ENDED:
            self.phase = ReconnectPhase.ENDED
        else:
            self.phase = _TRANSITIONS.get((before, event), before)
        if self.phase is before:
            return False
        if event is ReconnectEvent.ATTACHED:
            self.failures = 0
        elif event is ReconnectEvent.FAILED:
            self.failures += 1
        elif event is ReconnectEvent.REFUSED:
            # An attachment that is refused again and again succeeds in attaching each time.
            self.refusals += 1
            self.failures = self.refusals
        return True
