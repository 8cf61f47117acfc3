"""The time limits of a client, and the timeouts of single requests, which grow while a broker is slow."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.aio import Backoff
from anabranch.client.net.connection import Address

FIRST_TIMEOUT_S = 1.0
"""Timeout of the first handshake or look-up at an address; longer after each timeout."""


class GrowingTimeouts:
    """The timeout of requests to each address: short for a paused broker, and growing for a slow one."""

    def __init__(self, limit_s: float) -> None:
        self._timeouts = Backoff(min(FIRST_TIMEOUT_S, limit_s), limit_s)
        self._expired: dict[Address, int] = {}

    def timeout_s(self, address: Address) -> float:
        return self._timeouts.delay(self._expired.get(address, 0))

    def answered(self, address: Address) -> None:
        self._expired.pop(address, None)

    def expired(self, address: Address) -> None:
        self._expired[address] = self._expired.get(address, 0) + 1


@dataclass(frozen=True, slots=True)
class PoolTimes:
    """The time limits of one client."""

    connect_s: float = 10.0
    operation_s: float = 30.0
    keep_alive_s: float = 30.0
