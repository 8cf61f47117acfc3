"""Reports trouble with brokers and segments in the log: its beginning once, and its end once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from anabranch.client.decide.connecting.outages import BrokerOutages, Refusals
from anabranch.client.decide.connecting.refused_roles import is_refused_role
from anabranch.client.net.connection import Address
from anabranch.client.options import log


class BrokerTrouble:
    """The outages of all brokers that one client uses."""

    def __init__(self) -> None:
        self._outages: defaultdict[Address, BrokerOutages] = defaultdict(BrokerOutages)

    def failed(self, address: Address, what: str, reason: BaseException) -> None:
        """Report a lost connection or a failed attempt, if the broker was fine before."""
        report = self._outages[address].failed(asyncio.get_running_loop().time())
        write = log.warning if report else log.debug
        why = str(reason) or type(reason).__name__
        goes_on = "" if is_refused_role(reason) else "; the client retries"
        write("%s broker %s:%d: %s%s", what, *address, why, goes_on)

    def returned(self, address: Address) -> None:
        """Report a broker that was away."""
        away_s = self._outages[address].returned(asyncio.get_running_loop().time())
        if away_s is not None:
            log.info("broker %s:%d is back after %.1f s", *address, away_s)


class SegmentTrouble:
    """The refusals of one segment, layout or registration; `owner` returns the address of its broker."""

    def __init__(self, name: str, owner: Callable[[], str]) -> None:
        self._name = name
        self._owner = owner
        self._refusals = Refusals()

    def begin(self) -> None:
        """Note an attempt."""
        self._refusals.begin(asyncio.get_running_loop().time())

    def refused(self, error: BaseException) -> None:
        """Report a refusal that has lasted for several seconds.

        Lost brokers and refused roles are reported elsewhere.
        """
        if isinstance(error, (ConnectionError, PermissionError)):
            self._refusals.interrupted()
        elif self._refusals.refused(asyncio.get_running_loop().time()):
            why = str(error) or type(error).__name__
            log.warning("%s at %s refuses: %s; the client retries", self._name, self._owner(), why)

    def accepted(self) -> None:
        """Report the end of a refusal that was reported."""
        refused_s = self._refusals.accepted(asyncio.get_running_loop().time())
        if refused_s is not None:
            log.info("%s at %s is fine again after %.1f s", self._name, self._owner(), refused_s)


class RoleTrouble:
    """The refusals of the role of one producer or consumer; `name` returns the name of its topic."""

    def __init__(self, name: Callable[[], str], ends: Callable[[BaseException], bool]) -> None:
        self.opened = False
        """Whether the application has got the producer or consumer."""
        self._name = name
        self._ends = ends
        self._reported = False

    def ends(self, error: BaseException) -> bool:
        """Return whether an error refuses the role for good; log it once if the application cannot see it."""
        if not is_refused_role(error) or (self.opened and not self._ends(error)):
            return False
        if self.opened and not self._reported:
            self._reported = True
            log.error("%s: the broker refuses the role of this client: %s", self._name(), error)
        return True

    def accepted(self) -> None:
        """Report the next refusal again."""
        self._reported = False
