"""Entries that cannot be decoded: they are counted and logged, then skipped or raised by a receive."""

from __future__ import annotations

from anabranch.client.encryption import DecryptionError
from anabranch.client.options import BadEntries, log
from anabranch.client.received import Received
from anabranch.errors import AnabranchError, BadEntryError
from anabranch.model.ids import MessageId


class BadEntryRecord:
    """The bad entries that one consumer has met."""

    def __init__(self, policy: BadEntries) -> None:
        self.policy = policy
        self.count = 0
        self.to_raise: BadEntryError | DecryptionError | None = None
        """The error that the next receive raises; no entry behind it is handed out before."""

    def policy_for(self, problem: AnabranchError | None) -> BadEntries:
        """Return the policy for a problem; one that cannot be decrypted comes here only to be skipped."""
        return "skip" if isinstance(problem, DecryptionError) else self.policy

    def add(self, entry: Received, problem: AnabranchError, topic: str, number: int) -> None:
        """Take an entry that follows message `number`; it is passed over, or raised as the policy says."""
        self.count += 1
        place = MessageId(entry.source.segment_id, *entry.position)
        text = f"{topic}: the entry at {place.segment}/{place.ledger}:{place.entry} cannot be read: {problem}"
        log.warning("%s", text)
        entry.passed_over = True
        # The entry is acknowledged with all messages before it; if it raises, with the first one behind it.
        entry.first_number = number
        if self.policy_for(problem) == "fail":
            entry.first_number += 1
            self.to_raise = BadEntryError(text, topic, place)
        else:
            entry.finished = entry.wanted

    def raise_once(self) -> None:
        """Raise the waiting error, if there is one."""
        error, self.to_raise = self.to_raise, None
        if error is not None:
            raise error
