"""Decides, purely, what a leader does after a change of its topic failed; `topic/change_queue.py` does it."""

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
"""A change that raises one of these and left nothing unfinished has written nothing; its caller is told."""


class NextStep(Enum):
    CONTINUE = auto()
    """The leader knows the stored state, and nothing is left to do."""
    READ_AGAIN = auto()
    """The change may be stored in part: read the records before the next change, and retry later."""
    STEP_DOWN = auto()
    """Another broker leads the topic."""
    TOPIC_GONE = auto()
    """The topic was deleted."""


def after_failure(error: Exception, *, unfinished: bool) -> NextStep:
    """Return what follows a failed change; `unfinished` if records tell of a change that is not finished.

    Such a change is decided for good, so an error that looks like a refusal does not end it.
    """
    if isinstance(error, errors.StaleTermError):
        return NextStep.STEP_DOWN
    if isinstance(error, errors.TopicNotFoundError):
        return NextStep.TOPIC_GONE
    if isinstance(error, REFUSALS) and not unfinished:
        return NextStep.CONTINUE
    return NextStep.READ_AGAIN
