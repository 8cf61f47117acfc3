"""Leading follows stores: a broker leads the topics whose home store it owns.

This part opens and closes stores with the topics in them, and finds leaders for segments that have clients
but no leader. It must not know connections.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from anabranch.aio import in_slices
from anabranch.broker.catalog.served_logs import ServedLogs
from anabranch.broker.catalog.topic_catalog import TopicCatalog
from anabranch.broker.cluster.links import ClusterLinks
from anabranch.broker.cluster.ownership import Ownership, OwnershipOptions
from anabranch.broker.cluster.peers import Target
from anabranch.broker.cluster.routing import LEADER, LEADER_TARGET
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.controller.service import ControllerService
from anabranch.controller.topic.controller import TopicController
from anabranch.errors import AnabranchError, in_words
from anabranch.model.names import TopicName

_logger = logging.getLogger(__name__)

LEAVE_S: Final = 5.0
"""How long giving up a store waits until its topics are no longer led here."""

LOOKS: Final = 2
"""How many looks of its leader a segment waits for."""

LEADER_S: Final = 5.0
"""How long a call waits for the leader; the next round repeats the call."""

CHECKED_AT_ONCE: Final = 200


class LedStores:
    """The stores that this broker owns, and the topics that it leads because it owns them."""

    def __init__(
        self,
        controllers: ControllerService,
        catalog: TopicCatalog,
        links: ClusterLinks,
        *,
        fixed_workers: bool,
    ) -> None:
        """With `fixed_workers` the other workers may still start, and their stores are left to them first."""
        self.controllers = controllers
        self._logs = catalog.logs
        links.targets[LEADER_TARGET] = Target(LEADER, self._local_leader)
        options = OwnershipOptions(
            opened=controllers.store_opened,
            closing=self._leave,
            workers=catalog.config.workers,
            patience_s=catalog.config.lease_s if fixed_workers else 0.0,
            unexpected=not fixed_workers,
        )
        self._ownership = Ownership(links.lease, links.directory, links.store, catalog.stores, options)

    async def start(self) -> None:
        """Claim the stores that this broker should own, as `Ownership.start` does."""
        await self._ownership.start()

    async def stop(self) -> None:
        """Give up all stores. The controllers must be stopped first."""
        await self._ownership.stop()

    async def find_leaders(self) -> None:
        """Have the topics of used segments led, for as long as this broker runs."""
        await UnledTopics(self._logs, self.controllers).run()

    async def _local_leader(self, name: str) -> TopicController:
        return await self.controllers.lead(TopicName.parse(name))

    async def _leave(self, store: int) -> None:
        """Stop leading the topics of a store and disconnect the clients of its logs."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.controllers.store_closing(store)
        except (AnabranchError, TimeoutError) as error:
            _logger.warning("the topics of store %d could not be handed over in order: %s", store, error)
        finally:
            self._logs.leave(store)


class UnledTopics:
    """The topics whose leader does not look at a used segment of this broker.

    A leader asks for the load of its active segments at every look. A segment that has
    clients although its load was not asked for belongs to a resting topic whose leader, possibly a new one,
    has not heard of the clients.
    """

    def __init__(self, logs: ServedLogs, controllers: ControllerService) -> None:
        self._logs = logs
        self._controllers = controllers
        self._interval_s = controllers.context.settings.auto_scale_interval_s

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            async for log in in_slices(self._logs.served, CHECKED_AT_ONCE):
                if self._is_unled(log):
                    await self._call(log)

    def _is_unled(self, log: ServedLog) -> bool:
        waited_s = asyncio.get_running_loop().time() - log.observed_s
        late = waited_s > LOOKS * self._interval_s
        return late and log.name.segment is not None and not log.log.sealed and log.clients > 0

    async def _call(self, log: ServedLog) -> None:
        try:
            async with asyncio.timeout(LEADER_S):
                await self._controllers.ensure_led(log.name.topic)
            log.observed_s = asyncio.get_running_loop().time()
        except Exception as error:
            _logger.warning("%s has clients, but its topic has no leader yet: %s", log.name, in_words(error))
