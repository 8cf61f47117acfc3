"""Limits warnings that any client can cause as often as it likes: a few are written, the rest counted."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

PERIOD_S: Final = 10.0


class Seldom:
    """Writes at most `times` warnings of one kind in each period."""

    def __init__(self, logger: logging.Logger, times: int = 1) -> None:
        self._logger = logger
        self._times = times
        self._left = 0
        self._skipped = 0
        self._until = 0.0

    def warning(self, text: str, *values: object) -> None:
        """Write a warning, or count it; the next period starts by writing how many were counted."""
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            if self._skipped:
                self._logger.warning("%d more warnings like the last one were not written", self._skipped)
            self._left, self._skipped, self._until = self._times, 0, now + PERIOD_S
        if self._left:
            self._left -= 1
            self._logger.warning(text, *values)
        else:
            self._skipped += 1
