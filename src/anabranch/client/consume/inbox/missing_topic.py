"""The state of a consumer whose topic was deleted: for a while it may be created again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.errors import TopicNotFoundError

RECREATED_S: Final = 5.0
"""How long a topic may be missing before `receive` raises; a consumer reads one that is created again."""


class MissingTopic:
    """Whether the topic is missing; `wake` is called when waiting calls have to raise the error."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.error: TopicNotFoundError | None = None
        """The answer of the broker, once the topic has been missing for long; None again when it is back."""
        self._wake = wake
        self._alarm: asyncio.TimerHandle | None = None

    def report(self, error: TopicNotFoundError) -> None:
        """Note an attempt that did not find the topic."""
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(RECREATED_S, self._lose, error)

    def found(self) -> None:
        """Note that the topic exists, or that the consumer is closed."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.error = None

    def _lose(self, error: TopicNotFoundError) -> None:
        self.error = error
        self._wake()
