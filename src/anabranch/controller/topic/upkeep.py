"""A leader's periodic work. A duty that fails is shown as a trouble and is tried again in the next round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from anabranch.controller.decide import operation
from anabranch.controller.decide.groups import members_max
from anabranch.controller.decide.resting import may_rest
from anabranch.controller.topic.change_queue import ChangeRunner
from anabranch.controller.topic.layout_changes import LayoutChanges
from anabranch.controller.topic.leadership import Leadership
from anabranch.controller.topic.scaling import Scaling
from anabranch.controller.topic.subscriptions import Subscriptions
from anabranch.errors import InvalidConfigurationError, in_words
from anabranch.model.policies.retention import Retention
from anabranch.model.scaling.autoscale import Decision
from anabranch.model.scaling.scale_steps import Keep


class Upkeep:
    """Prunes and scales the topic at every interval and sooner when asked, and deletes its garbage."""

    def __init__(
        self,
        lead: Leadership,
        changes: ChangeRunner,
        layouts: LayoutChanges,
        subscriptions: Subscriptions,
        scaling: Scaling,
    ) -> None:
        self._lead = lead
        self._settings = lead.context.settings
        self._changes = changes
        self._layouts = layouts
        self._subscriptions = subscriptions
        self._scaling = scaling
        self._failed: dict[str, str] = {}
        self._undeleted: dict[str, str] = {}
        self._look_at_s = asyncio.get_running_loop().time() + self._interval_s()
        self._collect_at_s = float("inf")
        # A broker may lead many idle topics, so a topic that waits for its next check has a timer and no
        # task.
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = False
        self.looked: Callable[[], None] = lambda: None
        """Called after each check of the topic."""
        self._at_rest = False
        self._policies_changed = False
        self._limits = Retention(None)

    @property
    def at_rest(self) -> bool:
        """Return whether the last check found nothing to do, now or later, until a client comes."""
        if not self._at_rest or self._policies_changed or self.troubles():
            return False
        try:
            return may_rest(self._lead.record, self._scaling.policy(), self._limits)
        except InvalidConfigurationError:
            return False

    def policies_changed(self) -> None:
        """Do not rest before another check, because the current one may have read the old policies."""
        self._policies_changed = True

    def start(self) -> None:
        self._started = True
        self._set_timer()

    async def stop(self) -> None:
        self._started = False
        self._cancel_timer()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            # The traceback of a cancelled task refers to this object, which would create a reference cycle.
            self._task = None

    def troubles(self) -> dict[str, str]:
        """Return the last failure of each duty, and each piece of garbage that could not be deleted."""
        return {**self._failed, **self._undeleted}

    def look_soon(self) -> None:
        """Prune and scale after the time in which further consumers usually come or go."""
        self._look_within(self._settings.auto_scale_settle_s)

    def _look_within(self, delay_s: float) -> None:
        self._look_at_s = min(self._look_at_s, asyncio.get_running_loop().time() + delay_s)
        self._set_timer()

    def collect_within(self, delay_s: float) -> None:
        self._collect_at_s = min(self._collect_at_s, asyncio.get_running_loop().time() + delay_s)
        self._set_timer()

    async def collect_garbage(self) -> None:
        """Delete segments that the layout has dropped and remove them from the list.

        Failed ones stay listed.
        """
        gone, self._undeleted = await self._layouts.delete_garbage()
        try:
            if gone:
                await self._changes.run(lambda: self._layouts.strike_off(gone))
        finally:
            if self._lead.record.garbage:
                self.collect_within(self._lead.context.jitter_s(self._settings.retry_max_s))

    async def prune(self) -> None:
        """Drop what every subscription has read and what exceeds a retention limit."""
        measured = await self._layouts.measure()
        self._limits = measured[0]
        ends = await self._layouts.final_positions(*measured)
        if await self._changes.run(lambda: self._layouts.prune(*measured, ends)):
            self.collect_within(0)
        await self._layouts.trim(*measured)

    async def look(self) -> Decision:
        """Observe load and consumers once, and carry out the step that auto-scaling decides (PIP-483)."""
        loads = self._subscriptions.load_by_segment = await self._scaling.observe()
        decision = await self._changes.run(self._scale)
        known = len(loads) == len(self._lead.layout.active)
        quiet = known and not any(loads.values()) and not self._scaling.clients
        self._at_rest = quiet and isinstance(decision.action, Keep) and decision.look_again_s is None
        if decision.look_again_s is not None:
            self._look_within(max(decision.look_again_s, self._settings.auto_scale_settle_s))
        return decision

    async def _scale(self) -> Decision:
        records = self._subscriptions.records.values()
        decision = self._scaling.look(members_max(records, sharing=True), members_max(records, sharing=False))
        if isinstance(decision.action, Keep):
            self._scaling.tally.count(decision, done=False)
            await self._scaling.store_history()
            self._scaling.note(decision, "")
            return decision
        origin = self._lead.origin(decision.reason, automatic=True)
        actions = (decision.action, *decision.then)
        try:
            layout = await self._layouts.operate(
                lambda layout: operation.plan(layout, self._lead.name, actions, origin)
            )
        except Exception as error:
            self._scaling.note(decision, f"failed: {in_words(error)}")
            raise
        self._scaling.tally.count(decision, done=True)
        self._scaling.note(decision, f"done: epoch {layout.epoch}")
        return decision

    def _interval_s(self) -> float:
        return self._lead.context.jitter_s(self._settings.auto_scale_interval_s)

    def _set_timer(self) -> None:
        """Start the next duty when it is due. Duties in progress set the timer when they end."""
        if self._started and self._task is None:
            self._cancel_timer()
            due_s = min(self._look_at_s, self._collect_at_s)
            self._timer = asyncio.get_running_loop().call_at(due_s, self._begin, due_s)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, due_s: float) -> None:
        self._timer = None
        name = f"upkeep {self._lead.name}"
        self._task = asyncio.get_running_loop().create_task(self._run(due_s), name=name)

    async def _run(self, due_s: float) -> None:
        loop = asyncio.get_running_loop()
        # A timer may fire slightly early.
        if self._collect_at_s <= max(due_s, loop.time()):
            self._collect_at_s = float("inf")
            await self._do("garbage", self.collect_garbage)
        if self._look_at_s <= max(due_s, loop.time()):
            self._look_at_s = loop.time() + self._interval_s()
            self._policies_changed = False
            await self._do("pruning", self.prune)
            await self._do("scaling", self.look)
            self.looked()
        self._task = None
        self._set_timer()

    async def _do(self, name: str, duty: Callable[[], Awaitable[object]]) -> None:
        try:
            await duty()
            self._failed.pop(name, None)
        except Exception as error:
            self._failed[name] = in_words(error)
