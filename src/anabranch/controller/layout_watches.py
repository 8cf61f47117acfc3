"""Notifies the watchers of layouts.

A watcher gets only the newest layout: one that is replaced before its delivery is skipped, and an older epoch
never follows a newer one. This module does not know where layouts come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.model.layout import Layout
from anabranch.model.names import TopicName

LayoutChanged = Callable[[Layout | None], None]


class _Watcher:
    def __init__(self, changed: LayoutChanged) -> None:
        self.changed = changed
        self.active = True
        self._delivered_epoch = -1
        self._delivered_gone = False
        self._newest: Layout | None = None
        self._scheduled = False

    def offer(self, layout: Layout | None) -> None:
        if layout is not None and self._newest is not None and layout.epoch <= self._newest.epoch:
            return
        self._newest = layout
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        layout = self._newest
        if not self.active:
            return
        if layout is None:
            if not self._delivered_gone:
                self._delivered_gone = True
                self.changed(None)
        elif layout.epoch > self._delivered_epoch:
            self._delivered_epoch = layout.epoch
            self._delivered_gone = False
            self.changed(layout)


class LayoutWatches:
    """The watchers of all topics of one process."""

    def __init__(self) -> None:
        self._watchers: dict[TopicName, dict[int, _Watcher]] = {}
        self._next = 0

    def watched(self, name: TopicName) -> bool:
        return name in self._watchers

    def add(self, name: TopicName, changed: LayoutChanged, current: Layout | None) -> Callable[[], None]:
        """Call `changed` with `current` and each later layout.

        The returned undo function may be called twice.
        """
        watcher = _Watcher(changed)
        if current is not None:
            watcher.offer(current)
        number = self._next
        self._next += 1
        self._watchers.setdefault(name, {})[number] = watcher

        def undo() -> None:
            watcher.active = False
            found = self._watchers.get(name)
            if found is not None:
                found.pop(number, None)
                if not found:
                    del self._watchers[name]

        return undo

    def offer(self, name: TopicName, layout: Layout | None) -> None:
        """Deliver the newest layout to the topic's watchers. None means that the topic was deleted."""
        for watcher in tuple(self._watchers.get(name, {}).values()):
            watcher.offer(layout)
