"""`/admin/v2/brokers/backlog-quota-check`: all workers compare their logs with the policies at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from anabranch.admin.calls import Call, route
from anabranch.aio import together
from anabranch.broker.broker import Broker
from anabranch.broker.cluster.remote_calls import Port
from anabranch.metadata.broker_record import BrokerRecord

TARGET: Final = "policies"


class WorkerPolicies(Protocol):
    """The policies of the logs of one worker, as the others ask for them."""

    async def check(self) -> None:
        """Compare every log with its policies now, and not only at intervals."""


class LocalPolicies:
    """The policies of the logs of this worker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def check(self) -> None:
        await self._broker.catalog.policy_rounds.round()


POLICIES: Final = Port(WorkerPolicies)  # type: ignore[type-abstract]


class PolicyChecks:
    """Asks all workers of the cluster."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._local = broker, LocalPolicies(broker)
        self._others: Callable[[BrokerRecord], WorkerPolicies] = broker.links.serve_each(
            TARGET, POLICIES, self._local
        )

    async def check(self) -> None:
        """Return when every living worker has compared its logs."""
        living = self._broker.directory.brokers
        others = [self._others(broker) for id_, broker in living.items() if id_ != self._broker.id]
        await together(worker.check() for worker in (self._local, *others))


async def check_backlog_quotas(call: Call) -> None:
    """Keep backlog quotas, expiry and thresholds of compaction now, at all workers."""
    await call.policy_checks.check()


ROUTES = [route("GET", "/admin/v2/brokers/backlog-quota-check", check_backlog_quotas)]
