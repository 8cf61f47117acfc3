"""Follows the layouts of topics through their records. Does not know which other broker leads a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from anabranch.controller.layout_watches import LayoutWatches
from anabranch.controller.topic.leadership import ControllerContext
from anabranch.errors import AlreadyClosedError, MetadataError
from anabranch.metadata.layouts import layout_of
from anabranch.metadata.records import topic_path
from anabranch.model.names import TopicName


class FollowedLayouts:
    """Reads the records of watched topics whenever they change."""

    def __init__(
        self,
        context: ControllerContext,
        watches: LayoutWatches,
        led_here: Callable[[TopicName], bool],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self.homes: dict[TopicName, int] = {}
        """The home stores of followed topics whose record has been read."""
        self._context = context
        self._watches = watches
        self._led_here = led_here
        self._spawn = spawn
        self._undo: dict[TopicName, Callable[[], None]] = {}
        self._looking: dict[TopicName, bool] = {}

    def follow(self, name: TopicName) -> None:
        """Offer the stored layout to the topic's watchers after each change of the record."""
        if name not in self._undo:
            self._undo[name] = self._context.topics.watch(name, partial(self._changed, name))

    def leave(self, name: TopicName) -> None:
        """Stop following a topic that has no watchers any more."""
        self.homes.pop(name, None)
        undo = self._undo.pop(name, None)
        if undo is not None:
            undo()

    def close(self) -> None:
        for name in list(self._undo):
            self.leave(name)

    def _changed(self, name: TopicName, path: str) -> None:
        # Changes of the topic's subscriptions have longer paths.
        if path == topic_path(name) and not self._led_here(name):
            self.look_soon(name)

    def look_soon(self, name: TopicName) -> None:
        """Read the record in the background, and again if it changes in the meantime."""
        if not self._watches.watched(name):
            return
        if name in self._looking:
            self._looking[name] = True
        else:
            self._looking[name] = False
            self._spawn(self._keep_looking(name), f"look at {name}")

    async def _keep_looking(self, name: TopicName) -> None:
        try:
            again = True
            while again and self._watches.watched(name):
                self._looking[name] = False
                try:
                    await self.look(name)
                    again = self._looking[name]
                except AlreadyClosedError:
                    # The broker is stopping, and its watchers with it.
                    return
                except MetadataError:
                    await asyncio.sleep(self._context.jitter_s(self._context.settings.retry_first_s))
        finally:
            del self._looking[name]

    async def look(self, name: TopicName) -> None:
        """Offer the stored layout to the watchers, unless the creation of the topic is unfinished."""
        record = await self._context.topics.find(name)
        if record is None or record.deleted:
            self._watches.offer(name, None)
        elif record.intent is None or record.intent.kind != "create":
            self.homes[name] = record.store
            self._watches.offer(name, layout_of(record))
