"""How many messages of a segment are held ready, and when the broker is told to send more. Pure."""

from __future__ import annotations

GROWN_BYTES_MAX = 2**20
"""A buffer that grows by itself does not grow beyond this."""

MESSAGE_BYTES_MIN = 64
"""As much a message counts at least, however well it is compressed: those that follow may not be."""


class Permits:
    """Counts what the broker may send ahead, `size` messages beside those it has sent and nobody took."""

    def __init__(self, size: int, *, grows: bool = False) -> None:
        """One that `grows` has more than `size` for an application that runs out of messages."""
        self.size = size
        self._size_min = size
        self._grows = grows
        self._granted = 0
        self._returned = 0
        self._used_up = False
        """Whether the broker has sent all it might since the buffer last grew."""

    def reset(self) -> None:
        """The broker may send nothing, and nothing it has sent is here."""
        self._granted = self._returned = 0

    def grant(self, count: int) -> None:
        """The broker is told to send so many more."""
        self._granted += count
        self._returned = 0

    def use(self, count: int) -> None:
        """The broker has sent so many."""
        self._granted -= count
        if self._granted <= 0:
            self._used_up = True

    def give_back(self, count: int) -> int:
        """So many have left the buffer; returns how many to grant again now, once that is worth a command."""
        self._returned += count
        return self._returned if self._returned * 2 >= self.size else 0

    def resize(self, size: int) -> None:
        """Hold more ready, or fewer as those at hand leave."""
        self._returned += size - self.size
        self.size = size

    def fit(self, message_bytes: float, *, emptied: bool) -> None:
        """A message of this size was taken, and has `emptied` the buffer or not."""
        if not self._grows:
            return
        size_bytes = self.size * max(message_bytes, MESSAGE_BYTES_MIN)
        if size_bytes > GROWN_BYTES_MAX:
            self.resize(max(self.size // 2, self._size_min))
        elif self._used_up and emptied:
            # It was full, and the application has emptied it before more came.
            self._used_up = False
            if 2 * size_bytes <= GROWN_BYTES_MAX:
                self.resize(2 * self.size)
