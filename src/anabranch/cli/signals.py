"""Signals that end a command, so that it can leave its subscription or complete its messages."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that the block can leave; the exit code is 143."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        # Python takes signals in the main thread only.
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
