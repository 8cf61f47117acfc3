"""The step that follows each outcome of a change, as a table."""

from __future__ import annotations

import pytest

from anabranch.controller.decide.after_change import NextStep, after_change, after_settling
from anabranch.errors import (
    ConsumerBusyError,
    LayoutError,
    NotConnectedError,
    StaleTermError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (None, NextStep.CONTINUE),
        (LayoutError("sealed"), NextStep.CONTINUE),
        (ConsumerBusyError("busy"), NextStep.CONTINUE),
        (SubscriptionNotFoundError("none"), NextStep.CONTINUE),
        (NotConnectedError("away"), NextStep.READ_AGAIN),
        (ValueError("a bug"), NextStep.READ_AGAIN),
        (StaleTermError("newer"), NextStep.STEP_DOWN),
        (TopicNotFoundError("none"), NextStep.TOPIC_GONE),
    ],
)
def test_the_error_of_a_change_decides_the_next_step(error: Exception | None, step: NextStep) -> None:
    assert after_change(error) is step


@pytest.mark.parametrize(
    ("error", "complete", "step"),
    [
        (None, True, NextStep.CONTINUE),
        (None, False, NextStep.RETRY_LATER),
        (LayoutError("a refusal has no caller here"), False, NextStep.READ_AGAIN),
        (StaleTermError("newer"), False, NextStep.STEP_DOWN),
        (TopicNotFoundError("none"), False, NextStep.TOPIC_GONE),
    ],
)
def test_settling_is_retried_until_it_is_complete(
    error: Exception | None, complete: bool, step: NextStep
) -> None:
    assert after_settling(error, complete=complete) is step
