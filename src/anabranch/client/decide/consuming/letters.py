"""The properties of letters: messages that a consumer sends to a dead letter topic or a retry topic. Pure.

The names without a comment are those of Pulsar's clients, which read them.

Example: a message that went to the retry topic twice, and has RECONSUMETIMES 2, is to come again after 5
seconds. The letter has RECONSUMETIMES 3 and DELAY_TIME 5000, and keeps the first REAL_TOPIC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIMES: Final = "RECONSUMETIMES"
"""How often a message was sent to the retry topic."""
DELAY_TIME: Final = "DELAY_TIME"
"""Milliseconds until the retry topic delivers the message."""

ORIGIN_SEGMENT: Final = "ORIGIN_SEGMENT"
REASON: Final = "DEAD_LETTER_REASON"
ATTEMPTS: Final = "DEAD_LETTER_ATTEMPTS"
"""Properties that Pulsar does not have: the segment, the last error, and the attempts."""
BAD_ENTRY: Final = "BAD_ENTRY"
"""Property of a dead letter that is an entry as it was stored, `whole`."""

REASON_MAX: Final = 1000
"""Characters of an error that a dead letter carries."""


class LetterOrigin(NamedTuple):
    """The place where a message was first received."""

    topic: str
    subscription: str
    message_id: str
    segment: int


def origin_properties(origin: LetterOrigin, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a letter; a message that was a letter before keeps its first origin."""
    return {
        REAL_TOPIC: origin.topic,
        REAL_SUBSCRIPTION: origin.subscription,
        ORIGIN_MESSAGE_ID: origin.message_id,
        ORIGIN_SEGMENT: str(origin.segment),
        **properties,
    }


def dead_letter_properties(
    origin: LetterOrigin, properties: Mapping[str, str], reason: str, attempts: int
) -> dict[str, str]:
    """Return the properties of a dead letter, with the last error and the number of attempts."""
    return {
        **origin_properties(origin, properties),
        REASON: reason[:REASON_MAX],
        ATTEMPTS: str(attempts),
    }


def retry_properties(origin: LetterOrigin, properties: Mapping[str, str], delay_s: float) -> dict[str, str]:
    """Return the properties of a message that its retry topic delivers after a delay."""
    return {
        **origin_properties(origin, properties),
        RECONSUME_TIMES: str(reconsume_times(properties) + 1),
        DELAY_TIME: str(round(delay_s * 1000)),
    }


def reconsume_times(properties: Mapping[str, str]) -> int:
    """How often a message was sent to a retry topic; 0 also if another client wrote no number there."""
    text = properties.get(RECONSUME_TIMES, "0")
    return int(text) if text.isascii() and text.isdigit() else 0
