"""The contents of one commit, and the callers that wait for it. Does no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from anabranch.errors import ServerError
from anabranch.ledger.cursors import DurableCursor
from anabranch.ledger.format.commits import Change, CursorChanged
from anabranch.ledger.ledgers import Batch, Closed


class CommitQueue:
    """Everything that the next commit will contain."""

    __slots__ = ("applied", "batches", "began_s", "changes", "cursors", "waiters")

    def __init__(self) -> None:
        self.began_s = 0.0
        """The time at which the first batch was queued."""
        self.batches: list[Batch] = []
        self.changes: list[Change] = []
        self.applied: list[Callable[[], None]] = []
        self.cursors: list[DurableCursor] = []
        self.waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        return bool(self.batches or self.changes or self.cursors or self.waiters)

    def close(self) -> list[Closed]:
        """Return the batches as the commit stores them, and turn the cursors' steps into changes.

        Nothing may follow.
        """
        for batch in self.batches:
            batch.owner.batch_taken()
        for cursor in self.cursors:
            if steps := cursor.take_steps():
                self.changes.append(CursorChanged(cursor.log, cursor.name, steps))
        return [batch.close() for batch in self.batches]

    def make_entries(self) -> None:
        """Create the entries of all closed batches. This need not wait until the commit is durable."""
        for batch in self.batches:
            batch.entries()

    def apply(self, closed: Sequence[Closed]) -> None:
        """Hand the durable contents to the logs, wake readers, and answer all callers.

        Readers are woken first: a consumer waits for the message itself, a producer only for its receipt. At
        20,000 messages a second this lowered the end-to-end p50 from 1.15-1.36 to 0.95-1.39 ms
        (docs/benchmarks.md).

        Readers come first: a consumer waits for the message, and its producer only for the receipt.
        """
        for batch, stored in zip(self.batches, closed, strict=True):
            batch.owner.committed(batch, stored)
        for batch in {batch.log: batch for batch in self.batches}.values():
            batch.owner.notify()
        for batch in self.batches:
            batch.owner.answer(batch)
        for applied in self.applied:
            applied()
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def reject_batches(self, error: ServerError) -> None:
        batches, self.batches = self.batches, []
        for batch in batches:
            batch.owner.rejected(batch, error)

    def reject_waiters(self, error: ServerError) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(type(error)(str(error)))
