"""The logs of the open stores, found, created and removed by name.

A log is served from its first use until it is unloaded, because it was not used for long. The next use loads
it again as the first one did.

This module must not know connections, commands or the records of topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from anabranch.broker.catalog.side_logs import side_logs_of
from anabranch.broker.catalog.stores import Stores
from anabranch.broker.serving.context import LogContext, OpenedStore
from anabranch.broker.serving.log.live_log import LiveLog
from anabranch.broker.serving.log.served_log import ServedLog
from anabranch.broker.serving.subscription.kept import KeptLog
from anabranch.errors import AnabranchError, NotOwnerError, TopicNotFoundError
from anabranch.ledger.storage import SegmentLog
from anabranch.model.drains import Ranges
from anabranch.model.names import Place, TopicName

_logger = logging.getLogger(__name__)


class ServedLogs:
    """Segments, classic topics and live topics, each as one log."""

    def __init__(
        self, stores: Stores, context: LogContext, drained: Callable[[TopicName, str, Ranges], None]
    ) -> None:
        """`drained` is called when a subscription has acknowledged a sealed log, or some buckets of it."""
        self.stores = stores
        self.dropped = 0
        """How many logs were removed since the start."""
        self.unloaded = 0
        """How many logs were unloaded since the start, each time counted."""
        self.resumed = 0
        """How many of them were loaded again."""
        self._context = context
        self._drained = drained
        self._served: dict[TopicName, ServedLog] = {}
        self._kept: dict[TopicName, KeptLog] = {}
        """By name of an unloaded log."""

    @property
    def served(self) -> Sequence[ServedLog]:
        """The logs that are loaded, because they were used lately."""
        return tuple(self._served.values())

    def loaded(self, name: TopicName) -> ServedLog | None:
        """Return the log of that name if it is loaded; this does not count as a use of it."""
        return self._served.get(name)

    def kept(self, name: TopicName) -> KeptLog | None:
        """Return the counters of an unloaded log; None for a log that is loaded, or was never used here."""
        return self._kept.get(name)

    def get(self, name: TopicName) -> ServedLog | None:
        """Return the log of that name; None when no open store has it."""
        found = self._served.get(name)
        if found is None:
            log = self.stores.get(str(name))
            if log is not None:
                found = self._serve(name, log)
        if found is not None:
            found.use.used_s = asyncio.get_running_loop().time()
        return found

    def require(self, name: TopicName) -> ServedLog:
        """As `get`; TopicNotFoundError when there is none."""
        found = self.get(name)
        if found is None:
            raise TopicNotFoundError(f"{name} does not exist")
        return found

    def is_sound(self, place: Place) -> bool:
        """Return whether the log of an active segment takes entries, as far as this broker knows."""
        if not self.stores.is_open(place.store):
            return True
        log = self.stores.get(str(place.name))
        return log is not None and not log.sealed

    async def make(self, name: TopicName, store: int) -> ServedLog:
        """Return the log of that name, created in this store if there is none; durable when it returns."""
        found = self.get(name)
        if found is not None:
            return found
        if name.is_live:
            return self._serve_live(name, store)
        return self._serve(name, await self.stores.create(str(name), store))

    def _serve_live(self, name: TopicName, store: int) -> ServedLog:
        """Serve a live topic, which has no log in the store but belongs to the owner of the store."""
        self.stores.check(store)
        opened = OpenedStore(store, self.stores.opened[store])
        made = self._served[name] = LiveLog(name, self._context, self._drained, opened)
        return made

    async def drop(self, name: TopicName) -> None:
        """Disconnect the clients of a log and remove it. Does nothing if there is none."""
        found = self.get(name)
        if found is not None:
            found.close()
        stored = self.stores.get(str(name))
        sides = [] if stored is None else side_logs_of(stored)
        await self.stores.delete(str(name))
        for side in sides:
            await self.stores.delete(side)
        if found is not None and self._served.get(name) is found:
            del self._served[name]
            self.dropped += 1

    def unload(self, log: ServedLog) -> None:
        """Keep only the durable state of a log that `may_unload`, and its counters."""
        if self._served.get(log.name) is log:
            del self._served[log.name]
            self.unloaded += 1
            if log.name.is_live:
                log.close("was not used for long and is loaded again")
                return
            self._kept[log.name] = log.unload()

    def reload(self, name: TopicName) -> None:
        """Disconnect the clients of a log, which find it again; nothing of it stays in memory."""
        log = self._served.pop(name, None)
        if log is not None:
            log.close("is being loaded again")

    async def flush(self, within_s: float) -> None:
        """Wait until every entry that producers sent is stored and answered, for each log this long."""
        for served in self.served:
            if not served.producers.idle:
                try:
                    async with asyncio.timeout(within_s):
                        await served.log.flush()
                except (AnabranchError, TimeoutError) as error:
                    _logger.warning("%s: entries were not stored before the stop: %s", served.name, error)
                    return

    def leave(self, store: int) -> None:
        """Stop serving the logs of a store and disconnect their clients, which look up the next owner."""
        for name in [name for name, kept in self._kept.items() if kept.store == store]:
            del self._kept[name]
        for log in [log for log in self._served.values() if log.store == store]:
            del self._served[log.name]
            log.close("moves to another broker")

    def _serve(self, name: TopicName, log: SegmentLog) -> ServedLog:
        # Two callers may have created the log at the same time; both get the object of the first.
        found = self._served.get(name)
        if found is None:
            store = self.stores.store_of(str(name))
            if store is None or self.stores.get(str(name)) is not log:
                raise NotOwnerError(f"{name} is not served by this broker any more")
            opened = OpenedStore(store, self.stores.opened[store])
            found = ServedLog(name, log, self._context, self._drained, opened)
            self._served[name] = found
            kept = self._kept.pop(name, None)
            if kept is not None:
                found.resume(kept)
                self.resumed += 1
            found.check_drained()
        return found
