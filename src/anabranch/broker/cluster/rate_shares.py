"""Divides the rates of topics and tenants among the brokers that serve them, by their loads.

Each broker tells the others how much of each rate it used, and all divide the rate by the same rule. The
shares follow the load within about two rounds; meanwhile their sum may differ from the whole rate.
"""

from __future__ import annotations

import asyncio
from typing import Final

from anabranch.broker.cluster.usage_of_all import UsageOfAll, answer
from anabranch.broker.serving.rates.rate_gates import RateGate
from anabranch.broker.serving.rates.throttles import Throttles
from anabranch.model.token_bucket import divide

ROUND_S: Final = 0.5
IDLE_S: Final = 2.0
"""Pause while no rate is limited."""


class RateShares:
    """The shares of this broker."""

    def __init__(self, me: int, throttles: Throttles, everywhere: UsageOfAll) -> None:
        self._me = me
        self._throttles = throttles
        self._everywhere = everywhere
        self._is_limited = False
        throttles.first_share = self._first

    async def run(self) -> None:
        """Exchange loads and follow them, for ever."""
        while True:
            await asyncio.sleep(ROUND_S if self._is_limited else IDLE_S)
            await self.follow_loads()

    async def follow_loads(self) -> None:
        """Report the loads of this broker, and take its shares by the loads that are known."""
        gates = {gate.key: gate for gate in self._throttles.gates() if gate.shared}
        self._is_limited = bool(gates)
        if not gates:
            return
        others = self._everywhere.others()
        demands = {key: gate.take_demand() for key, gate in gates.items()}
        await asyncio.gather(*(answer(broker.report_demands(self._me, demands)) for _, broker in others))
        known = [self._everywhere.local.demands_of(number) for number, _ in others]
        for key, gate in gates.items():
            _take_share(gate, [demands[key], *(report[key] for report in known if key in report)])

    def _first(self) -> float:
        return 1.0 / (1 + len(self._everywhere.others()))


def _take_share(gate: RateGate, demands: list[float]) -> None:
    gate.change(gate.rate, divide(demands)[0])
