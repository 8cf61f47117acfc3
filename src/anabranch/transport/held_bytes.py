"""Counts the bytes that the broker holds for slow peers, and decides which connection to close first."""

from __future__ import annotations

import logging

from anabranch.errors import TooManyRequestsError
from anabranch.transport.door import Visitor
from anabranch.transport.seldom import Seldom

_logger = logging.getLogger(__name__)


class HeldBytes:
    """Counts the bytes of one kind; above the limit, the one that holds bytes for longest is closed.

    A fast peer holds bytes for a moment, so under pressure the slowest peers go first.
    """

    def __init__(self, kind: str, bytes_max: int) -> None:
        self.total = 0
        self.dropped = 0
        self._kind = kind
        self._bytes_max = bytes_max
        self._held: dict[Visitor, int] = {}
        """The connection that began first to hold bytes comes first."""
        self._log = Seldom(_logger)

    def hold(self, holder: Visitor, size: int, *, anew: bool = False) -> None:
        """Note how many bytes a connection holds now; `anew` means that the earlier ones are gone."""
        before = self._held.pop(holder, 0) if anew else self._held.get(holder, 0)
        self.total += size - before
        if size:
            self._held[holder] = size
            if self.total > self._bytes_max:
                self._drop_slowest()
        else:
            self._held.pop(holder, None)

    def _drop_slowest(self) -> None:
        while self.total > self._bytes_max and self._held:
            slowest = next(iter(self._held))
            self.total -= self._held.pop(slowest)
            self.dropped += 1
            slowest.abort(TooManyRequestsError(f"all connections together hold too many {self._kind}"))
        self._log.warning(
            "%d connections hold %d bytes of %s; %d of the slowest were closed so far",
            len(self._held),
            self.total,
            self._kind,
            self.dropped,
        )
