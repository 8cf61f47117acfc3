"""Calls back into the users of a log, so that one failing callback does not keep others from being called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watchers:
    """The callbacks that want to know when one log moved."""

    def __init__(self, log_name: str) -> None:
        self._log_name = log_name
        self._watchers: list[Callable[[], None]] = []

    def add(self, advanced: Callable[[], None]) -> Callable[[], None]:
        """Call `advanced` on each `notify`; returns the undo."""
        self._watchers.append(advanced)

        def undo() -> None:
            if advanced in self._watchers:
                self._watchers.remove(advanced)

        return undo

    def notify(self) -> None:
        for advanced in list(self._watchers):
            try:
                advanced()
            except Exception as error:
                report_failure(self._log_name, error)


def report_failure(log_name: str, error: Exception) -> None:
    """Report an exception of a callback to the event loop's exception handler."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"callback on {log_name} failed", "exception": error}
    )
