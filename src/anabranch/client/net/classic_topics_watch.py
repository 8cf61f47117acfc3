"""Follows the classic topics of a namespace by asking for their names again and again.

Every Pulsar broker answers that question, so a consumer of a pattern needs no more from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.aio import TaskRegistry
from anabranch.client.net.connection_pool import ConnectionPool
from anabranch.client.net.topic_lists import list_classic_topics
from anabranch.client.options import log
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName

LIST_S = 5.0
"""Pause between two questions, and so the time after which a new topic is read at the latest."""


class ClassicTopicsWatch:
    """Calls `changed` with the names of all topics, partitioned ones as a whole, when they change."""

    def __init__(
        self, pool: ConnectionPool, namespace: str, changed: Callable[[frozenset[str]], None]
    ) -> None:
        self._pool = pool
        self._namespace = namespace
        self._changed = changed
        self._names: frozenset[str] = frozenset()
        self._ended = False

    async def open(self, tasks: TaskRegistry, within_s: float) -> frozenset[str]:
        """Return the topics now and follow them in `tasks`; raises the broker's refusal."""
        self._names = await self.ask(within_s)
        tasks.start(self._follow(), f"classic topics of {self._namespace}")
        return self._names

    def close(self) -> None:
        """Stop following; safe to call at any time."""
        self._ended = True

    async def ask(self, within_s: float | None = None) -> frozenset[str]:
        """The topics now, without those that brokers keep for themselves."""
        names = await self._pool.retry(
            lambda: list_classic_topics(self._pool, self._namespace),
            f"listing the topics of {self._namespace}",
            within_s=within_s,
        )
        return frozenset(name for name in names if not TopicName.parse(name).local.startswith("__"))

    async def _follow(self) -> None:
        while not self._ended:
            await asyncio.sleep(LIST_S)
            try:
                names = await self.ask()
            except AnabranchError as error:
                log.warning("the topics of %s cannot be listed: %s", self._namespace, error)
                continue
            if names != self._names and not self._ended:
                self._names = names
                self._changed(names)
