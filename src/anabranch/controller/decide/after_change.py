"""Decides what a leader does after a change of its topic: go on, retry, read records again, or step down.

Pure: takes the error that a change raised and returns the next step; `topic/change_runner.py` takes the step.
"""

from __future__ import annotations

from enum import Enum, auto

from anabranch.errors import (
    ConflictError,
    ConsumerBusyError,
    InvalidConfigurationError,
    LayoutError,
    NotAllowedError,
    SegmentNotFoundError,
    StaleTermError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)

REFUSALS = (
    ConflictError,
    ConsumerBusyError,
    InvalidConfigurationError,
    LayoutError,
    NotAllowedError,
    SegmentNotFoundError,
    SubscriptionNotFoundError,
)
"""A change that raises one of these has written nothing; only its caller has to know."""


class NextStep(Enum):
    """The step that follows a change, or an attempt to finish earlier changes."""

    CONTINUE = auto()
    """The leader knows the stored state, and nothing is left to do."""
    RETRY_LATER = auto()
    """The leader knows the stored state, but some segments or subscriptions do not follow it yet."""
    READ_AGAIN = auto()
    """The change may be stored in part: read the records before the next change, and retry later."""
    STEP_DOWN = auto()
    """Another broker leads the topic."""
    TOPIC_GONE = auto()
    """The topic was deleted."""


def after_change(error: Exception | None) -> NextStep:
    """Return what follows a change that a caller requested."""
    if error is None or isinstance(error, REFUSALS):
        return NextStep.CONTINUE
    return _after_failure(error)


def after_settling(error: Exception | None, *, complete: bool) -> NextStep:
    """Return what follows the attempt to finish earlier changes; `complete` if nothing is left of them."""
    if error is not None:
        return _after_failure(error)
    return NextStep.CONTINUE if complete else NextStep.RETRY_LATER


def _after_failure(error: Exception) -> NextStep:
    if isinstance(error, StaleTermError):
        return NextStep.STEP_DOWN
    if isinstance(error, TopicNotFoundError):
        return NextStep.TOPIC_GONE
    return NextStep.READ_AGAIN
