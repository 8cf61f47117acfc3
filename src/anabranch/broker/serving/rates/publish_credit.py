"""The credit of a producer of our client: none while a rate is exceeded, but its connection is still read.

The gates of rates see a credit where they see the connection of another client: both can be stopped. This
module must not know how a connection divides its room among producers.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from google.protobuf.message import Message

from anabranch.broker.serving.rates.rate_gates import PublishingLink, RateGate
from anabranch.protocol.pb import pulsar_pb2 as pb

NO_CREDIT: Final = 0

OVERDRAFT_BYTES: Final = 16 * 2**20
"""Bytes of a producer that may arrive after it lost its credit; with more, it ignores its credit."""


class CreditedLink(PublishingLink, Protocol):
    """The connection of a producer with credit."""

    def send(self, command: Message) -> None: ...


class PublishRates(Protocol):
    """The rates of a topic, as far as they limit what a producer may have under way."""

    def allowance(self) -> tuple[int | None, int | None]:
        """Return the bytes and messages that one producer may have under way; None without a limit."""


class CreditTotals:
    """The producers of a broker that have no credit now, and the time that all of them have spent so."""

    def __init__(self, overdraft_bytes: int = OVERDRAFT_BYTES) -> None:
        self.overdraft_bytes = overdraft_bytes
        self.waits = 0
        self._since: dict[PublishCredit, float] = {}
        self._seconds = 0.0

    @property
    def waiting(self) -> int:
        return len(self._since)

    def begin(self, credit: PublishCredit) -> None:
        self.waits += 1
        self._since[credit] = asyncio.get_running_loop().time()

    def end(self, credit: PublishCredit) -> None:
        since = self._since.pop(credit, None)
        if since is not None:
            self._seconds += asyncio.get_running_loop().time() - since

    @property
    def seconds(self) -> float:
        """The waits of all producers so far, with those that go on."""
        now = asyncio.get_running_loop().time() if self._since else 0.0
        return self._seconds + sum(now - since for since in self._since.values())


class PublishCredit:
    """The limit of one producer for entries without a receipt, beside the limit of its connection."""

    def __init__(
        self, link: CreditedLink, producer_id: int, rates: PublishRates, totals: CreditTotals
    ) -> None:
        self._link = link
        self._id = producer_id
        self._rates = rates
        self._totals = totals
        self._reasons: set[object] = set()
        self._granted: tuple[int | None, int | None] | None = None
        """The bytes and messages that the client was told last; None before the first time."""
        self._unpaid_bytes = 0

    # As the gate of a rate sees it.

    @property
    def pauses(self) -> PublishCredit:
        return self

    def add(self, reason: object) -> None:
        """Take the credit away, for one more reason."""
        self._reasons.add(reason)
        if len(self._reasons) == 1:
            self._totals.begin(self)
            self._renew()

    def remove(self, reason: object) -> None:
        """Give credit again when no reason is left."""
        if reason in self._reasons:
            self._reasons.remove(reason)
            if not self._reasons:
                self._unpaid_bytes = 0
                self._totals.end(self)
                self._renew()

    def write(self, buffer: bytes) -> None:
        """Drop a sign of life: the connection is read, so its client gets real answers."""

    # As its producer sees it.

    def grant(self) -> None:
        """Tell the client its credit, which is renewed from now on."""
        self._granted = self._now()
        size, messages = self._granted
        self._link.send(pb.CommandProducerCredit(producer_id=self._id, bytes=size, messages=messages))

    def rates_changed(self) -> None:
        """Follow other rates of the topic or its tenant."""
        self._renew()

    def payer(self, size: int) -> PublishingLink:
        """Return what pays for an entry: the credit, or the connection of a client that ignores credit."""
        if self._reasons:
            self._unpaid_bytes += size
            if self._unpaid_bytes > self._totals.overdraft_bytes:
                return self._link
        return self

    def end(self) -> None:
        """Let no gate wait for a producer that is gone."""
        for reason in self._reasons:
            if isinstance(reason, RateGate):
                reason.forget(self)
        self._reasons.clear()
        self._totals.end(self)
        self._granted = None

    def _renew(self) -> None:
        if self._granted is not None and self._granted != self._now():
            self.grant()

    def _now(self) -> tuple[int | None, int | None]:
        return (NO_CREDIT, None) if self._reasons else self._rates.allowance()
