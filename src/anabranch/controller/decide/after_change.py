"""Decides what a leader does after a change of its topic failed; `topic/change_queue.py` does it. Pure.

Example: a ConflictError of a split that recorded no intent leads to CONTINUE, because nothing was written.
The same error while an intent is recorded leads to READ_AGAIN, because the split must be finished.
"""

from __future__ import annotations

from enum import Enum, auto

from anabranch import errors

REFUSALS = (
    errors.ConflictError,
    errors.ConsumerBusyError,
    errors.InvalidConfigurationError,
    errors.LayoutError,
    errors.NotAllowedError,
    errors.SegmentNotFoundError,
    errors.SubscriptionNotFoundError,
)
"""A change that raises one of these, and left nothing unfinished, has written nothing. Its caller gets the
error."""


class NextStep(Enum):
    CONTINUE = auto()
    """The leader knows the stored state, and nothing is left to do."""
    READ_AGAIN = auto()
    """The change may be partly stored: read the records before the next change, and retry later."""
    STEP_DOWN = auto()
    """Another broker leads the topic."""
    TOPIC_GONE = auto()
    """The topic was deleted."""


def after_failure(error: Exception, *, unfinished: bool) -> NextStep:
    """Return what to do after a failed change; `unfinished` means that a recorded change is not finished.

    Such a change can no longer be refused, so even an error that looks like a refusal does not end it.
    """
    if isinstance(error, errors.StaleTermError):
        return NextStep.STEP_DOWN
    if isinstance(error, errors.TopicNotFoundError):
        return NextStep.TOPIC_GONE
    if isinstance(error, REFUSALS) and not unfinished:
        return NextStep.CONTINUE
    return NextStep.READ_AGAIN
