"""The next step after a handler has failed with a message, or its consumer has refused it. Pure.

Example: the policy is to skip after 3 redeliveries. A message that fails at its first delivery, or after 1 or
2 redeliveries, is retried. After 3 it goes to the dead letter topic; with the policy `park` it waits instead.
"""

from __future__ import annotations

import math
from datetime import timedelta
from enum import Enum

from anabranch.client.options import DeadLetter


class Fate(Enum):
    """The fate of a message that failed."""

    RETRY = "the message is delivered again after a pause; its key waits"
    SKIP = "the message goes to the dead letter topic; its key continues"
    PARK = "the message and the later ones of its key wait until an operator releases them"


def after_failure(redeliveries: int, policy: DeadLetter | None) -> Fate:
    """Return the fate of a message that failed after `redeliveries` repeated deliveries."""
    if policy is None or policy.policy == "block" or redeliveries < policy.max_redeliveries:
        return Fate.RETRY
    return Fate.SKIP if policy.policy == "skip" else Fate.PARK


def asked_pause_s(error: BaseException) -> float | None:
    """Seconds until the next attempt, if the error has them in an attribute `retry_after`."""
    asked = getattr(error, "retry_after", None)
    if isinstance(asked, timedelta):
        asked = asked.total_seconds()
    if isinstance(asked, (int, float)) and math.isfinite(asked) and asked >= 0:
        return float(asked)
    return None
