"""Counts failed attempts by address, in a table of bounded size; an address that fails often has to wait."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

FAILURES_AT_ONCE: Final = 20
"""An address may fail this often before it has to wait."""
FAILURES_PER_S: Final = 0.2
ADDRESSES_MAX: Final = 10_000
"""Known addresses; the one whose last failure is longest ago is forgotten."""


class Attempts:
    """Counts the failures of each address; they are forgiven slowly."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is the time of the event loop."""
        self._now = now
        self._debts: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Failures of an address that are not forgiven yet, at the time of the last one."""

    def fail(self, address: str) -> None:
        """Count a failure."""
        key = network_of(address)
        debt = self._debt(key) + 1
        self._debts[key] = min(debt, 2 * FAILURES_AT_ONCE), self._now()
        self._debts.move_to_end(key)
        if len(self._debts) > ADDRESSES_MAX:
            self._debts.popitem(last=False)

    def is_exhausted(self, address: str) -> bool:
        """Return whether the address has failed too often lately."""
        return self._debt(network_of(address)) >= FAILURES_AT_ONCE

    def _debt(self, key: str) -> float:
        debt, at = self._debts.get(key, (0.0, 0.0))
        return max(0.0, debt - (self._now() - at) * FAILURES_PER_S)


def network_of(address: str) -> str:
    """Return the host of `host:port`; of IPv6 the network, because one machine has all of its addresses."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if found.version == 4:
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
