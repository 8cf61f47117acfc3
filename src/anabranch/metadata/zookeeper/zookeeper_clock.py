"""The time for which a session with ZooKeeper exists for certain, by the clock of this process; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ContactClock:
    """When the server last had a request of this session for certain, by the clock of this process.

    The server counts the timeout of a session from the arrival of a request. The client does not know that
    time, but it was after the request was sent: so the clock shows when the last answered request was sent.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.session_s = 0.0
        """Timeout of the session, as the server granted it."""
        self._heard_s = -float("inf")
        self._sent_s: deque[float] = deque()

    def sent(self) -> None:
        self._sent_s.append(self._now())

    def answered(self) -> None:
        # An answer out of order counts as one to an older request, which is never too late.
        if self._sent_s:
            self._heard_s = self._sent_s.popleft()

    def connected(self, asked_s: float, session_s: float) -> None:
        self._sent_s.clear()
        self._heard_s, self.session_s = asked_s, session_s

    def left_s(self) -> float:
        """Seconds for which the server keeps the session for certain."""
        return self._heard_s + self.session_s - self._now()
