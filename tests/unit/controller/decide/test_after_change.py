"""The step that follows each failure of a change, as a table."""

from __future__ import annotations

import pytest

from anabranch.controller.decide.after_change import NextStep, after_failure
from anabranch.errors import (
    ConsumerBusyError,
    LayoutError,
    NotConnectedError,
    StaleTermError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)


@pytest.mark.parametrize(
    ("error", "refused", "unfinished"),
    [
        (LayoutError("sealed"), NextStep.CONTINUE, NextStep.READ_AGAIN),
        (ConsumerBusyError("busy"), NextStep.CONTINUE, NextStep.READ_AGAIN),
        (SubscriptionNotFoundError("none"), NextStep.CONTINUE, NextStep.READ_AGAIN),
        (NotConnectedError("away"), NextStep.READ_AGAIN, NextStep.READ_AGAIN),
        (ValueError("a bug"), NextStep.READ_AGAIN, NextStep.READ_AGAIN),
        (StaleTermError("newer"), NextStep.STEP_DOWN, NextStep.STEP_DOWN),
        (TopicNotFoundError("none"), NextStep.TOPIC_GONE, NextStep.TOPIC_GONE),
    ],
)
def test_the_error_decides_the_next_step(error: Exception, refused: NextStep, unfinished: NextStep) -> None:
    assert after_failure(error, unfinished=False) is refused
    assert after_failure(error, unfinished=True) is unfinished, "a recorded change is not refused"
