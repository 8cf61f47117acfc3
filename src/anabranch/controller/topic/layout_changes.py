"""Carries out layout operations: intent, children, seal, inheritance, commit; and prunes segments.

Runs in the topic's change queue. Every effect may be repeated, so an interrupted operation is finished by
carrying all of it out again. This module does not know which request or decision led to an operation, nor
when a failed step is retried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from anabranch.aio import together
from anabranch.controller.decide import operation
from anabranch.controller.decide.consistency import Inconsistency, LogState, compare
from anabranch.controller.decide.retention import NO_SIZES, Sizes, kept_sizes, prunable
from anabranch.controller.layout_watches import LayoutWatches
from anabranch.controller.topic.leadership import Happened, Leadership, Notify
from anabranch.controller.topic.scaling import Scaling
from anabranch.controller.topic.subscriptions import Subscriptions
from anabranch.errors import AnabranchError, StaleTermError, TopicNotFoundError, in_words
from anabranch.metadata.layouts import layout_of, with_layout
from anabranch.metadata.records import GarbageRecord, IntentRecord, TopicRecord
from anabranch.model.inheritance import Pieces
from anabranch.model.layout import Layout
from anabranch.model.names import Place, TopicName
from anabranch.model.policies.retention import Retention

log = logging.getLogger(__name__)

T = TypeVar("T")

replace = msgspec.structs.replace

Plan = Callable[[Layout], IntentRecord]

STEPS = (
    "planned",
    "created.first",
    "created",
    "sealed.first",
    "sealed",
    "inherited.first",
    "inherited",
    "committed",
)
"""The failpoints of every operation, each prefixed with its kind, in the order in which they are reached."""


class LayoutChanges:
    """The only writer of a topic's layout."""

    def __init__(
        self,
        lead: Leadership,
        subscriptions: Subscriptions,
        scaling: Scaling,
        watches: LayoutWatches,
        notify: Notify,
    ) -> None:
        self.unreached: dict[str, str] = {}
        """Segments that do not know this leader's term yet, and why."""
        self._phase: str | None = None
        """The phase that the running operation is in, or failed in."""
        self._lead = lead
        self._context = lead.context
        self._subscriptions, self._scaling = subscriptions, scaling
        self._watches, self._notify = watches, notify
        self._unfenced = [segment.id for segment in lead.layout.active]

    def describe(self) -> dict[str, object] | None:
        intent = self._lead.record.intent
        return None if intent is None else {**msgspec.to_builtins(intent), "phase": self._phase}

    @property
    def unfinished(self) -> bool:
        """Return whether the recorded operation, or one of a subscription, is not finished."""
        return self._lead.record.intent is not None or self._subscriptions.unfinished

    async def read_again(self) -> None:
        """Read all records, after a write whose outcome is unknown."""
        await self._lead.reload()
        await self._subscriptions.reload()
        self._scaling.reload()
        self._publish()
        if self._lead.record.garbage:
            # A pruning may have been stored although its answer was lost.
            self._notify(Happened.GARBAGE_FOUND)

    async def finish(self) -> bool:
        """Finish the recorded operation, then update segments and subscriptions.

        Returns False if some cannot.
        """
        if self._lead.record.intent is not None:
            await self._carry_out(self._lead.record.intent)
        await self._mend(compare(await self._fence()))
        return await self._subscriptions.settle() and not self.unreached

    async def _fence(self) -> dict[int, LogState]:
        """Announce the term to active segments and create missing ones. A missing sealed one is a loss.

        From then on an owner refuses every command of an earlier leader, which may still be running.
        """
        troubles: dict[str, str] = {}
        found: dict[int, LogState] = {}

        async def announce(id_: int) -> None:
            place = self._lead.place(self._lead.layout.segments[id_])
            try:
                subscriptions = self._subscriptions.for_new()
                found[id_] = await self._context.segments.create(place, subscriptions, self._lead.term)
            except StaleTermError:
                raise
            except AnabranchError as error:
                troubles[f"segment {id_}"] = in_words(error)

        # An operation that was just finished may have sealed some of them.
        active = {segment.id for segment in self._lead.layout.active}
        await together(announce(id_) for id_ in self._unfenced if id_ in active)
        self._unfenced = [id_ for id_ in self._unfenced if f"segment {id_}" in troubles]
        self.unreached = troubles
        return found

    async def _mend(self, seen: Inconsistency) -> None:
        """Replace segments whose logs accept no messages, and report logs that are gone."""
        for id_ in seen.lost:
            self._lead.report_begun_empty(id_)
        if seen.sealed:
            reason = "the log is sealed, but the layout said that it is active"
            log.warning("%s: segments %s: %s; they are replaced", self._lead.name, seen.sealed, reason)
            origin = self._lead.origin(reason, automatic=True)
            await self.operate(
                lambda layout: operation.plan_renew(layout, self._lead.name, seen.sealed, origin)
            )

    async def operate(self, plan: Plan) -> Layout:
        """Record the intent and reserve its ids in one write, then carry it out."""

        def begin(record: TopicRecord) -> TopicRecord:
            layout = layout_of(record)
            intent = plan(layout)
            return replace(with_layout(record, operation.reserve(layout, intent)), intent=intent)

        await self._lead.update(begin)
        intent = self._lead.record.intent
        assert intent is not None
        await self._context.failpoints.reach(f"{intent.kind}.planned")
        await self._carry_out(intent)
        return self._lead.layout

    async def _carry_out(self, intent: IntentRecord) -> None:
        segments, term, kind = self._context.segments, self._lead.term, intent.kind
        # This is upstream's order for a split (PIP-468): the cursors exist on the children before a producer
        # can see a child, the parents are sealed before the children are visible, and the compare-and-set of
        # the layout is the commit point. Upstream records no intent, so a leader that dies between seal and
        # commit leaves a key range that accepts no messages. Here the next leader finds the intent and
        # repeats all steps; the ids and names of the children are in the intent, so it creates the same ones.
        # The sequence ids are inherited after the seal, when no further message can be stored in a parent,
        # and before the commit, when the first one can reach a child.
        self._phase = "creating"
        for sub, type_ in sorted(intent.subscriptions.items()):
            await self._subscriptions.adopt(sub, type_)
        subscriptions = self._subscriptions.for_new()
        parents = [self._lead.place(s) for s in operation.parents(self._lead.layout, intent)]
        children = operation.children(intent)
        await self._each(
            f"{kind}.created", children, lambda place: segments.create(place, subscriptions, term)
        )
        self._phase = "sealing"
        sealed = await self._each(f"{kind}.sealed", parents, self._seal)
        self._phase = "inheriting"
        lineage = operation.lineage(self._lead.layout, intent, self._lead.name)
        await self._context.topics.producer_epochs.inherit(lineage)
        heirs = operation.heirs(children, [piece for pieces in sealed for piece in pieces])
        await self._each(
            f"{kind}.inherited", [*heirs], lambda place: segments.inherit(place, heirs[place], term)
        )
        self._phase = "committing"
        await self._commit()
        if kind == "rebucket":
            self._scaling.tally.rebuckets += len(intent.steps)
        self._phase = None
        await self._context.failpoints.reach(f"{kind}.committed")
        self._publish()

    async def _seal(self, place: Place) -> Pieces:
        """Seal a parent. If its log is gone, create it empty first, so that its readers find an end."""
        segments, term = self._context.segments, self._lead.term
        try:
            return await segments.seal(place, term)
        except TopicNotFoundError:
            state = await segments.create(place, self._subscriptions.for_new(), term)
            if state == "created" and (parent := self._lead.find(place.name)) is not None:
                self._lead.report_begun_empty(parent.id)
            return await segments.seal(place, term)

    async def _each(
        self, step: str, places: Sequence[Place], verb: Callable[[Place], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """Command the first place alone, so that tests can crash after it, then all others concurrently."""
        results: list[T] = []
        for place in places[:1]:
            results.append(await verb(place))
            await self._context.failpoints.reach(f"{step}.first")
        results += await together(verb(place) for place in places[1:])
        await self._context.failpoints.reach(step)
        return results

    async def _commit(self) -> None:
        now_ms, now_s = self._context.clock.wall_ms(), self._lead.now_s()

        def commit(record: TopicRecord) -> TopicRecord:
            if record.intent is None:
                return record
            before = layout_of(record)
            history = operation.remember(self._scaling.history, before, record.intent, now_s)
            after = operation.next_layout(before, record.intent, now_ms)
            return replace(with_layout(record, after), intent=None, history=history.to_json())

        await self._lead.update(commit)
        self._scaling.reload()

    def _publish(self) -> None:
        """Offer the layout to its watchers, and let subscriptions follow it when they settle."""
        self._watches.offer(self._lead.name, self._lead.layout)
        self._subscriptions.layout_changed()

    async def measure(self) -> tuple[Retention, Sizes]:
        """Return the retention limits, and segment sizes if they matter. Runs outside the queue."""
        limits = await self._context.topics.namespaces.retention(
            self._lead.name, self._context.settings.retention_s
        )
        if limits.size_bytes is None:
            return limits, NO_SIZES
        segments = list(self._lead.layout.segments.values())
        loads = await together(self._lead.load(segment) for segment in segments)
        found = zip(segments, loads, strict=True)
        return limits, {segment.id: load.size_bytes for segment, load in found if load is not None}

    async def trim(self, limits: Retention, sizes: Sizes) -> None:
        """Let active segments drop data beyond the limits. Runs outside the queue, as owners may be slow."""
        layout, term = self._lead.layout, self._lead.term
        kept = kept_sizes(layout, limits, sizes)
        await together(
            self._context.segments.trim(self._lead.place(layout.segment(id_)), size, term)
            for id_, size in kept.items()
        )

    async def final_positions(self, limits: Retention, sizes: Sizes) -> dict[int, int]:
        """Return the index after the last message of each segment to drop. Runs outside the queue.

        A segment whose owner does not answer is missing: it is dropped, and its end is not remembered.
        """
        layout = self._lead.layout
        segments = [layout.segment(id_) for id_ in self._prunable(limits, sizes)]
        loads = await together(self._lead.load(segment) for segment in segments)
        return {
            segment.id: load.next_index
            for segment, load in zip(segments, loads, strict=True)
            if load is not None and load.next_index >= 0
        }

    def _prunable(self, limits: Retention, sizes: Sizes) -> tuple[int, ...]:
        records = self._subscriptions.records.values()
        return prunable(self._lead.layout, records, limits, self._context.clock.wall_ms(), sizes)

    async def prune(self, limits: Retention, sizes: Sizes, ends: Mapping[int, int]) -> bool:
        """Drop sealed segments beyond the limits from the layout and list them as garbage, in one write."""
        ids = self._prunable(limits, sizes)
        if not ids:
            return False
        now_ms = self._context.clock.wall_ms()

        def forget(record: TopicRecord) -> TopicRecord:
            layout = layout_of(record)
            places = [self._lead.place(layout.segment(id_)) for id_ in ids]
            dropped = (GarbageRecord(name=str(p.name), since_ms=now_ms, store=p.store) for p in places)
            garbage = (*record.garbage, *dropped)
            return replace(with_layout(record, layout.prune(ids, ends)), garbage=garbage)

        await self._lead.update(forget)
        await self._context.failpoints.reach("prune.committed")
        self._publish()
        return True

    async def delete_garbage(self) -> tuple[list[str], dict[str, str]]:
        """Delete the storage of dropped segments. Returns the deleted names, and the failures."""
        gone: list[str] = []
        troubles: dict[str, str] = {}

        async def delete(item: GarbageRecord) -> None:
            place = Place(TopicName.parse(item.name), item.store)
            try:
                await self._context.delete_log(place, self._lead.term)
            except AnabranchError as error:
                troubles[f"garbage {item.name}"] = in_words(error)
            else:
                gone.append(item.name)

        await together(delete(item) for item in self._lead.record.garbage)
        return gone, troubles

    async def strike_off(self, names: Sequence[str]) -> None:
        await self._lead.update(
            lambda record: replace(
                record, garbage=tuple(item for item in record.garbage if item.name not in names)
            )
        )
