"""How many messages of a segment a consumer buffers, and when it asks the broker for more. Pure.

Example: a buffer has room for 1,000 messages, and the broker got 1,000 permits. The consumer says nothing
while 499 messages leave the buffer. With the 500th, half of it is free, and the broker gets 500 more permits.
"""

from __future__ import annotations

from enum import Enum

GROWN_BYTES_MAX = 2**20
"""A buffer that grows by itself does not grow beyond this size."""

MESSAGE_BYTES_MIN = 64
"""Least size that a message counts with: the messages after a well compressed one may be larger."""


SPARE_ENTRIES = 1000
"""Entries that a broker may send without permits, because both ends may count an entry differently."""


class Intake(Enum):
    """Whether a consumer asks a segment for messages: PAUSED becomes OPEN, and each becomes RELEASED."""

    PAUSED = "attached, asks for no messages yet"
    OPEN = "asks for messages"
    RELEASED = "takes no more messages, only sends acknowledgements"


class Permits:
    """Counts the messages that the broker may still send, so that `size` messages fit into the buffer."""

    def __init__(self, size: int, *, grows: bool = False) -> None:
        """With `grows` the buffer grows beyond `size` for an application that empties it."""
        self.size = size
        self.entries_max = 2 * size + SPARE_ENTRIES
        """Entries in the buffer above which the broker has sent more than it was asked for."""
        self._size_min = size
        self._grows = grows
        self._granted = 0
        self._returned = 0
        self._used_up = False
        """Whether the broker has used all permits since the buffer last grew."""

    def reset(self) -> None:
        """Begin a subscription: the broker has no permits and the buffer is empty."""
        self._granted = self._returned = 0

    def grant(self, count: int) -> None:
        """Note that the broker gets `count` more permits."""
        self._granted += count
        self._returned = 0

    def use(self, count: int) -> None:
        """Note that the broker has sent `count` messages."""
        self._granted -= count
        if self._granted <= 0:
            self._used_up = True

    def give_back(self, count: int) -> int:
        """Note that `count` messages left, return the permits to grant: 0 until half the buffer is free."""
        self._returned += count
        return self._returned if self._returned * 2 >= self.size else 0

    def resize(self, size: int) -> None:
        """Buffer up to `size` messages; a full buffer shrinks as messages leave it."""
        self._returned += size - self.size
        self.size = size
        self.entries_max = max(self.entries_max, 2 * size + SPARE_ENTRIES)

    def fit(self, message_bytes: float, *, emptied: bool) -> None:
        """Adapt the size to a message that left the buffer, and `emptied` it or not."""
        if not self._grows:
            return
        size_bytes = self.size * max(message_bytes, MESSAGE_BYTES_MIN)
        if size_bytes > GROWN_BYTES_MAX:
            self.resize(max(self.size // 2, self._size_min))
        elif self._used_up and emptied:
            # The buffer was full, and the application emptied it before more messages came.
            self._used_up = False
            if 2 * size_bytes <= GROWN_BYTES_MAX:
                self.resize(2 * self.size)
