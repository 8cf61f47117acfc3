"""Brings one topic into a finished state: reads records, finishes its operation, lets all parts follow.

Every step may be repeated. Must not know which change comes next, nor when a failed step is retried.
"""

from __future__ import annotations

from anabranch.controller.topic.events import GarbageFound, Notify
from anabranch.controller.topic.layout_changes import LayoutChanges
from anabranch.controller.topic.leadership import Leadership
from anabranch.controller.topic.scaling import Scaling
from anabranch.controller.topic.subscriptions import Subscriptions


class TopicSettling:
    """Settles the topic that `lead` leads."""

    def __init__(
        self,
        lead: Leadership,
        layouts: LayoutChanges,
        subscriptions: Subscriptions,
        scaling: Scaling,
        notify: Notify,
    ) -> None:
        self.unreached: dict[str, str] = {}
        """Segments that do not know this leader's term yet, and why."""
        self._lead = lead
        self._layouts = layouts
        self._subscriptions = subscriptions
        self._scaling = scaling
        self._notify = notify

    async def read_again(self) -> None:
        """Read all records, after a write whose outcome is unknown."""
        await self._lead.reload()
        await self._subscriptions.reload()
        self._scaling.reload()
        self._layouts.publish()
        if self._lead.record.garbage:
            # A pruning may have been stored although its answer was lost.
            self._notify(GarbageFound())

    async def finish(self) -> bool:
        """Finish the recorded operation and let segments and subscriptions follow; False if some cannot."""
        if self._lead.record.intent is not None:
            await self._layouts.carry_out(self._lead.record.intent)
        self.unreached = await self._layouts.fence()
        return await self._subscriptions.settle() and not self.unreached
