"""Looks at all stored logs at intervals: expires messages, keeps backlog quotas, compacts, as policies say.

Must not know connections, commands or layouts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from anabranch.aio import in_slices
from anabranch.broker.catalog import backlog_quotas
from anabranch.broker.catalog.policy_book import PolicyBook
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.dispatch.compaction import COMPACTION
from anabranch.broker.serving.context import Spawn
from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.skipping import skip_older
from anabranch.errors import AnabranchError
from anabranch.ledger.storage import SegmentLog
from anabranch.model.names import TopicName
from anabranch.model.policies import backlog
from anabranch.model.policies.effective import TopicPolicies

_logger = logging.getLogger(__name__)

LOGS_PER_TURN = 200
"""Logs looked at in one turn of the event loop."""


class PolicyRounds:
    """Loads a log only if a policy demands a change of it, so that unused logs stay unloaded."""

    def __init__(
        self,
        logs: ServedLogs,
        policies: PolicyBook,
        wall_ms: Callable[[], int],
        spawn: Spawn,
        interval_s: float,
    ) -> None:
        self._logs = logs
        self._policies = policies
        self._wall_ms, self._spawn = wall_ms, spawn
        self._interval_s = interval_s
        self._failing: set[str] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.round()

    async def round(self) -> None:
        """Look at every log once; one that fails is reported and skipped."""
        names = self._logs.stores.names()
        self._failing.intersection_update(names)
        async for name in in_slices(names, LOGS_PER_TURN):
            log, topic = self._logs.stores.get(name), TopicName.parse(name)
            policies = self._policies.of(topic)
            if log is None or not self._is_due(topic, log, policies):
                continue
            try:
                served = self._logs.require(topic)
                with served.use.call():
                    await self._enforce(served, policies)
            except (AnabranchError, OSError) as error:
                if name not in self._failing:
                    self._failing.add(name)
                    _logger.error("%s: its policies cannot be enforced: %s", name, error)
            else:
                self._failing.discard(name)

    def _is_due(self, topic: TopicName, log: SegmentLog, policies: TopicPolicies) -> bool:
        now_ms = self._wall_ms()
        if policies.message_ttl_s is not None:
            expired = log.extent.ordinal_at_time(now_ms - 1000 * policies.message_ttl_s)
            cursors = [cursor for name, cursor in log.cursors.items() if name != COMPACTION]
            if any(cursor.acks.mark < expired for cursor in cursors):
                return True
        if policies.compaction_bytes is not None and not topic.is_segment and self._exceeds(log, policies):
            return True
        quota = policies.backlog
        oldest = backlog_quotas.oldest_backlog(log, now_ms) if quota.limits else None
        return backlog.decide(quota, oldest) is not None

    def _exceeds(self, log: SegmentLog, policies: TopicPolicies) -> bool:
        """Return whether enough is stored for a compaction, or the log does not keep entries for one yet."""
        cursor, extent = log.cursors.get(COMPACTION), log.extent
        if cursor is None or policies.compaction_bytes is None:
            return True
        first = max(cursor.acks.mark, extent.first_ordinal)
        return extent.bytes_between(first, extent.next_ordinal) > policies.compaction_bytes

    async def _enforce(self, log: ServedLog, policies: TopicPolicies) -> None:
        if policies.message_ttl_s is not None:
            before_ms = self._wall_ms() - 1000 * policies.message_ttl_s
            for subscription in tuple(log.subscriptions.values()):
                if subscription.durable:
                    await skip_older(subscription, before_ms)
        if policies.backlog.limits:
            await backlog_quotas.enforce(log, policies.backlog, self._wall_ms())
        if policies.compaction_bytes is not None and not log.name.is_segment:
            log.compacting.keep()
            if log.compacting.due_bytes > policies.compaction_bytes and not log.compacting.running:
                log.compacting.start(self._spawn, log.use, self._wall_ms)


def follow_policies(logs: ServedLogs, policies: PolicyBook, namespace: str | None) -> None:
    """Let connected clients follow policies that have changed, in one namespace or in all.

    Producers that were opened under other policies are disconnected; their clients open them again.
    Consumers stay, because a disconnected one would get its messages once more.
    """
    for log in logs.served:
        if namespace is None or log.name.namespace_name == namespace:
            now = policies.of(log.name)
            if log.name.is_live:
                now = replace(now, deduplicate=False)
            log.producers.renew(partial(_is_opened_under, now))
            for subscription in log.subscriptions.values():
                subscription.reading.limit(now.unacked_of_consumer_max, now.unacked_of_all_max)
                subscription.schedule()


def _is_opened_under(policies: TopicPolicies, producer: ServedProducer) -> bool:
    rules, most = producer.options.rules, policies.message_bytes_max
    return (
        producer.options.deduplicate == policies.deduplicate
        and rules.encrypted == policies.encryption_required
        and rules.topic_bytes_max == most
    )
