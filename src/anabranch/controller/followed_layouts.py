"""Layouts of topics that other brokers lead, as the metadata store shows them.

Whoever leads a topic tells its watchers by itself, sooner; this is for all other brokers. Must not know who
leads what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from anabranch.controller.layout_watches import LayoutWatches
from anabranch.controller.topic.leadership import ControllerContext
from anabranch.errors import AlreadyClosedError, MetadataError
from anabranch.metadata.records import topic_path
from anabranch.metadata.store import Change
from anabranch.metadata.topics import layout_of
from anabranch.model.names import TopicName


class FollowedLayouts:
    """Looks at the records of topics that somebody watches whenever they change."""

    def __init__(
        self,
        context: ControllerContext,
        watches: LayoutWatches,
        led_here: Callable[[TopicName], bool],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self.homes: dict[TopicName, int] = {}
        """The home stores of topics that are followed, as far as they are known."""
        self._context = context
        self._watches = watches
        self._led_here = led_here
        self._spawn = spawn
        self._undo: dict[TopicName, Callable[[], None]] = {}
        self._looking: dict[TopicName, bool] = {}

    def follow(self, name: TopicName) -> None:
        """Tell the watchers of the topic what is stored, after each change."""
        if name not in self._undo:
            self._undo[name] = self._context.topics.watch(name, partial(self._changed, name))

    def leave(self, name: TopicName) -> None:
        """Nobody watches the topic any more."""
        self.homes.pop(name, None)
        undo = self._undo.pop(name, None)
        if undo is not None:
            undo()

    def close(self) -> None:
        for name in list(self._undo):
            self.leave(name)

    def _changed(self, name: TopicName, change: Change) -> None:
        # Subscriptions lie deeper.
        if change.path == topic_path(name) and not self._led_here(name):
            self.look_soon(name)

    def look_soon(self, name: TopicName) -> None:
        """Look at the record, again if it changes meanwhile."""
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
                    # The broker ends, and its watchers with it.
                    return
                except MetadataError:
                    await asyncio.sleep(self._context.jitter_s(self._context.settings.retry_first_s))
        finally:
            del self._looking[name]

    async def look(self, name: TopicName) -> None:
        """Tell those who watch what is stored; a topic that is being made is told of when it is there."""
        record = await self._context.topics.find(name)
        if record is None or record.deleted:
            self._watches.offer(name, None)
        elif record.intent is None or record.intent.kind != "create":
            self.homes[name] = record.store
            self._watches.offer(name, layout_of(record))
