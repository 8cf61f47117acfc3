"""Messages of one producer that were not stored, until a caller retrieves their errors or they are logged."""

from __future__ import annotations

from anabranch.client.decide.outgoing import Outgoing
from anabranch.client.options import log

KEPT_MAX = 1000
"""Failed batches that are kept for a caller; the producer logs them when there are more."""


class FailedBatches:
    """Failed batches; a future that a caller looked at marks its batch as seen."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._kept: list[Outgoing] = []

    def add(self, batch: Outgoing) -> None:
        self._kept.append(batch)
        if len(self._kept) >= KEPT_MAX:
            self._kept = self._unseen()
            if len(self._kept) >= KEPT_MAX // 2:
                self.report()

    def take(self) -> list[Exception]:
        """Return the errors that no caller has seen, and forget them."""
        unseen, self._kept = self._unseen(), []
        return [batch.error for batch in unseen if batch.error is not None]

    def report(self) -> None:
        """Log the messages whose failure no caller has seen, and forget them."""
        unseen, self._kept = self._unseen(), []
        if unseen:
            count = sum(batch.count for batch in unseen)
            log.warning("%s: %d messages were not stored: %s", self._topic, count, unseen[-1].error)

    def _unseen(self) -> list[Outgoing]:
        return [batch for batch in self._kept if not batch.seen]
