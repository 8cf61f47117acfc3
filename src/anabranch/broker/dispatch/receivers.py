"""A consumer as dispatch sees it: its permits and its limits."""

from __future__ import annotations

from typing import Protocol


class Channel(Protocol):
    """The connection of a receiver; dispatch only asks whether it has room."""

    @property
    def writable(self) -> bool: ...


class Receiver:
    """A consumer as dispatch sees it; permits and unacknowledged messages change with each entry."""

    __slots__ = (
        "blocked",
        "channel",
        "id",
        "name",
        "permits",
        "priority",
        "retired",
        "unacked",
        "unacked_max",
    )

    def __init__(
        self, name: str, number: int, channel: Channel, *, priority: int = 0, unacked_max: int = 2**62
    ) -> None:
        self.name = name
        self.id = number
        self.channel = channel
        self.priority = priority
        self.permits = 0
        """Messages the consumer still wants; negative after a batch that held more than it wanted."""
        self.unacked = 0
        self.unacked_max = unacked_max
        self.blocked = False
        """Too many messages are unacknowledged; lifted at half the limit, so that it does not flutter."""
        self.retired = False
        """Another consumer reads next: this one gets no more entries and only acknowledges those it has."""

    @property
    def ready(self) -> bool:
        return self.permits > 0 and not self.blocked and not self.retired and self.channel.writable

    def charge(self, messages: int) -> None:
        """Count an entry with this many messages as delivered."""
        self.permits -= messages
        self.unacked += messages
        if self.unacked >= self.unacked_max:
            self.blocked = True

    def settle(self, messages: int) -> None:
        """Count this many delivered messages as acknowledged, or as taken back."""
        self.unacked -= messages
        if self.blocked and self.unacked <= self.unacked_max // 2:
            self.blocked = False
