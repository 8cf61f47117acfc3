"""Which losses of brokers, and which refusals of segments, a client reports. Pure.

Example: a broker is lost every 10 seconds and comes back each time. The losses at 0, 10, 20, 30 and 40 s are
reported; the one at 50 s would be the sixth within a minute and is not. A segment that refuses from 0 s on is
reported at the first refusal after 5 s, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

REPORTS_MAX = 5
"""Losses of one broker that are reported within a minute; a connection that breaks at once fills no log."""

REPORTS_WITHIN_S = 60.0

REFUSED_S = 5.0
"""How long a segment may refuse before the client reports it."""


@dataclass
class BrokerOutages:
    """The outages of one broker, as one client sees them."""

    since: float | None = None
    """When the present outage began."""
    reported: list[float] = field(default_factory=list)
    """When the newest reported outages began."""

    def failed(self, now: float) -> bool:
        """Note a lost connection or a failed attempt; return whether to report it."""
        if self.since is not None:
            return False
        self.since = now
        self.reported = [at for at in self.reported if at > now - REPORTS_WITHIN_S]
        if len(self.reported) >= REPORTS_MAX:
            return False
        self.reported.append(now)
        return True

    def returned(self, now: float) -> float | None:
        """Note a new connection; return how long a reported outage took."""
        since, self.since = self.since, None
        return None if since is None or since not in self.reported else now - since


@dataclass
class Refusals:
    """The refusals of one segment in a row."""

    since: float | None = None
    """When the attempts began that did not succeed so far."""
    reported: bool = False

    def begin(self, now: float) -> None:
        """Note an attempt."""
        if self.since is None:
            self.since = now

    def refused(self, now: float) -> bool:
        """Note a refusal; return whether to report it: once, when it has lasted for long."""
        self.begin(now)
        if self.reported or self.since is None or now - self.since < REFUSED_S:
            return False
        self.reported = True
        return True

    def interrupted(self) -> None:
        """Note that the broker was away, which is another problem; a reported refusal may go on then."""
        if not self.reported:
            self.since = None

    def accepted(self, now: float) -> float | None:
        """Note a success; return how long a reported refusal lasted."""
        since, reported = self.since, self.reported
        self.since, self.reported = None, False
        return now - since if reported and since is not None else None
