"""Split, merge, rebucket and creation as recorded intents that any later leader can finish. Pure.

An intent names the segments to seal, and the ids and names of their children. It does not record progress:
every effect may be repeated, so a later leader finishes an intent by carrying all of it out again. Splits and
merges are the layout operations of PIP-460 and PIP-468, decided automatically by PIP-483; a rebucket is that
of PIP-486. `topic/layout_changes.py` carries intents out.

Example: segment 0 covers hashes 0 to 65535 and `next_id` is 1. `plan_split` with no points cuts it at 32768:
the intent has `first_id` 1 and two child names, `reserve` raises `next_id` to 3, and `next_layout` seals 0
and adds segment 1 (0 to 32767) and segment 2 (32768 to 65535).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.errors import ConflictError, LayoutError
from anabranch.metadata.records import IntentRecord, OperationKind, StepRecord
from anabranch.model.inheritance import Piece, Pieces, inherit
from anabranch.model.layout import Layout, Segment, SegmentState
from anabranch.model.names import Place, TopicName
from anabranch.model.ranges import HashRange
from anabranch.model.scaling.autoscale import record_action
from anabranch.model.scaling.observed import LoadHistory
from anabranch.model.scaling.scale_steps import Action, Merge, Rebucket, Split


@dataclass(frozen=True, slots=True)
class Origin:
    """The term, time and reason with which an operation starts."""

    term: int
    now_ms: int
    reason: str = ""
    automatic: bool = False
    stores: tuple[int, ...] = (0,)
    """The stores that new segments may be placed in."""


def plan_create(layout: Layout, topic: TopicName, origin: Origin) -> IntentRecord:
    """Plan the creation of the initial segments, which the layout already lists."""
    return IntentRecord(
        kind="create",
        steps=(),
        first_id=min(layout.segments),
        child_names=tuple(str(segment_name(topic, segment)) for segment in layout.active),
        child_stores=tuple(segment.store for segment in layout.active),
        started_at_ms=origin.now_ms,
        term=origin.term,
        reason=origin.reason,
    )


def plan_migrate(layout: Layout, topic: TopicName, splits: Sequence[int], origin: Origin) -> IntentRecord:
    """Plan to continue classic topics in new segments with these bucket boundaries."""
    ids = tuple(segment.id for segment in layout.active)
    step = StepRecord(parent_ids=ids, bucket_splits=tuple(splits))
    return _plan("migrate", layout, topic, [step], origin)


def plan_split(
    layout: Layout, topic: TopicName, points: Mapping[int, Sequence[int] | None], origin: Origin
) -> IntentRecord:
    """Split each named segment at its points, or in the middle if it has none, in one operation.

    Like all plans, raises LayoutError or SegmentNotFoundError if the layout does not allow it.
    """
    steps = []
    for id_ in sorted(points):
        cut = points[id_]
        if cut is None:
            cut = (layout.segment(id_).range.halves()[1].start,)
        steps.append(StepRecord(parent_ids=(id_,), points=tuple(cut)))
    return _plan("split", layout, topic, steps, origin)


def plan_merge(layout: Layout, topic: TopicName, ids: Iterable[int], origin: Origin) -> IntentRecord:
    return _plan("merge", layout, topic, [StepRecord(parent_ids=tuple(ids))], origin)


def plan_rebucket(
    layout: Layout, topic: TopicName, splits: Mapping[int, Sequence[int]], origin: Origin
) -> IntentRecord:
    """Give each named segment a successor with other bucket boundaries, all in one operation."""
    steps = [StepRecord(parent_ids=(id_,), bucket_splits=tuple(splits[id_])) for id_ in sorted(splits)]
    return _plan("rebucket", layout, topic, steps, origin)


def plan_renew(layout: Layout, topic: TopicName, ids: Iterable[int], origin: Origin) -> IntentRecord:
    """Give each named segment a successor of the same shape, all in one operation."""
    steps = [StepRecord(parent_ids=(id_,)) for id_ in sorted(ids)]
    return _plan("renew", layout, topic, steps, origin)


def plan(layout: Layout, topic: TopicName, actions: Sequence[Action], origin: Origin) -> IntentRecord:
    """Plan one operation for the steps of one decision, which are all of one kind."""
    if isinstance(actions[0], Merge):
        return plan_merge(layout, topic, actions[0].segments, origin)
    if isinstance(actions[0], Split):
        return plan_split(
            layout, topic, {a.segment: a.points for a in actions if isinstance(a, Split)}, origin
        )
    return plan_rebucket(
        layout, topic, {a.segment: a.splits for a in actions if isinstance(a, Rebucket)}, origin
    )


def reserve(layout: Layout, intent: IntentRecord) -> Layout:
    """Return the layout to store with the intent. It reserves the ids of the children."""
    assert intent.first_id == layout.next_id
    return layout.reserve(len(intent.child_names))


def next_layout(layout: Layout, intent: IntentRecord, now_ms: int) -> Layout:
    """Return the layout after the operation, which seals parents and creates children at the same time."""
    first_id = intent.first_id
    for step in intent.steps:
        layout = _apply(layout, intent.kind, step, now_ms, first_id)
        first_id += _child_count(intent.kind, step)
    return put(layout, dict(enumerate(intent.child_stores, intent.first_id)))


def parents(layout: Layout, intent: IntentRecord) -> tuple[Segment, ...]:
    return tuple(layout.segment(id_) for step in intent.steps for id_ in step.parent_ids)


def children(intent: IntentRecord) -> tuple[Place, ...]:
    return tuple(
        Place(TopicName.parse(name), store)
        for name, store in zip(intent.child_names, intent.child_stores, strict=True)
    )


def lineage(layout: Layout, intent: IntentRecord, topic: TopicName) -> dict[TopicName, tuple[TopicName, ...]]:
    """Return the name of each child's log, with those of its parents."""
    made = next_layout(layout, intent, 0)
    names = {segment.id: segment_name(topic, segment) for segment in made.segments.values()}
    first = intent.first_id
    return {
        names[id_]: tuple(names[parent] for parent in made.segments[id_].parents)
        for id_ in range(first, first + len(intent.child_names))
    }


@dataclass(frozen=True, slots=True)
class LayoutVersion:
    """The state of a topic that a request to change its layout refers to."""

    incarnation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RequestedChange:
    """A change that a caller requested, perhaps repeatedly because the first answer was lost."""

    parents: tuple[int, ...]
    plan: Callable[[Layout], IntentRecord]
    expected: LayoutVersion | None = None
    """The state that the caller saw before its first request, or None if it never repeats requests."""


def is_made(change: RequestedChange, layout: Layout, incarnation: int) -> bool:
    """Return whether the change was made since the caller saw the layout; ConflictError if that is unknown.

    A segment is sealed only once, so a change is not made twice: a repeated request finds the parents sealed,
    and the children show whether this change or another one sealed them.
    """
    if change.expected is None or change.expected == LayoutVersion(incarnation, layout.epoch):
        return False
    if change.expected.incarnation != incarnation:
        raise ConflictError("the topic was deleted and created again since this change was requested")
    gone = [id_ for id_ in change.parents if id_ not in layout.segments and id_ < layout.next_id]
    if gone:
        raise ConflictError(f"segment {gone[0]} has been removed; this change may already have been made")
    if not layout.segments.keys() >= set(change.parents):
        return False
    return was_made(layout, change.parents, lambda before: next_layout(before, change.plan(before), 0))


def was_made(layout: Layout, parents: Iterable[int], change: Callable[[Layout], Layout]) -> bool:
    """Return whether the children of these parents are those that `change` would make."""
    sealed = [layout.segment(id_) for id_ in parents]
    if any(segment.active for segment in sealed):
        return False
    opened = {s.id: replace(s, state=SegmentState.ACTIVE, children=()) for s in sealed}
    try:
        after = change(replace(layout, segments={**layout.segments, **opened}))
    except LayoutError:
        return False
    wanted = [after.segments[id_] for id_ in range(layout.next_id, after.next_id)]
    found = [layout.segment(id_) for id_ in sealed[0].children]
    return list(map(_shape, wanted)) == list(map(_shape, found))


def _shape(segment: Segment) -> tuple[HashRange, tuple[int, ...], tuple[int, ...]]:
    return segment.range, segment.parents, segment.bucket_splits


def spread(held: Iterable[Segment], count: int, stores: Sequence[int]) -> tuple[int, ...]:
    """Return stores for `count` new segments, each the one with the fewest segments of the topic so far."""
    found = Counter(segment.store for segment in held)
    chosen = []
    for _ in range(count):
        store = min(stores, key=lambda store: (found[store], store))
        found[store] += 1
        chosen.append(store)
    return tuple(chosen)


def put(layout: Layout, stores: Mapping[int, int]) -> Layout:
    """Return the layout with each of these segments placed in its store."""
    moved = {id_: replace(layout.segments[id_], store=store) for id_, store in stores.items()}
    return replace(layout, segments={**layout.segments, **moved})


def segment_name(topic: TopicName, segment: Segment) -> TopicName:
    """Return the name of the log that holds a segment's messages: a classic topic's, or the segment's own."""
    if segment.legacy_topic is not None:
        return TopicName.parse(segment.legacy_topic)
    return topic.segment_name(segment.range, segment.id)


def remember(history: LoadHistory, layout: Layout, intent: IntentRecord, now_s: float) -> LoadHistory:
    """Return the history after the operation. An operator's request starts the cooldowns of PIP-483 too."""
    for step in intent.steps:
        if intent.kind == "split":
            history = record_action(history, layout, Split(step.parent_ids[0], step.points), now_s)
        elif intent.kind in ("migrate", "renew"):
            continue
        elif intent.kind == "rebucket":
            history = record_action(history, layout, Rebucket(step.parent_ids[0], step.bucket_splits), now_s)
        elif intent.automatic:
            history = record_action(history, layout, Merge(step.parent_ids), now_s)
        else:
            history = replace(history, last_merge_s=now_s)
    return history


def _plan(
    kind: OperationKind, layout: Layout, topic: TopicName, steps: Sequence[StepRecord], origin: Origin
) -> IntentRecord:
    if not steps:
        raise LayoutError(f"a {kind} needs at least one segment")
    after = layout
    for step in steps:
        after = _apply(after, kind, step, origin.now_ms, after.next_id)
    made = [after.segments[id_] for id_ in range(layout.next_id, after.next_id)]
    kept = [segment for segment in after.active if segment.id < layout.next_id]
    return IntentRecord(
        kind=kind,
        steps=tuple(steps),
        first_id=layout.next_id,
        child_names=tuple(str(segment_name(topic, segment)) for segment in made),
        child_stores=spread(kept, len(made), origin.stores),
        started_at_ms=origin.now_ms,
        term=origin.term,
        reason=origin.reason,
        automatic=origin.automatic,
    )


def _apply(layout: Layout, kind: OperationKind, step: StepRecord, now_ms: int, first_id: int) -> Layout:
    if kind == "split":
        return layout.split(step.parent_ids[0], step.points, now_ms=now_ms, first_id=first_id)
    if kind == "merge":
        return layout.merge(step.parent_ids, now_ms=now_ms, first_id=first_id)
    if kind == "migrate":
        return layout.migrate(step.bucket_splits, now_ms=now_ms, first_id=first_id)
    if kind == "renew":
        return layout.renew(step.parent_ids[0], now_ms=now_ms, first_id=first_id)
    assert kind == "rebucket"
    return layout.rebucket(step.parent_ids[0], step.bucket_splits, now_ms=now_ms, first_id=first_id)


def _child_count(kind: OperationKind, step: StepRecord) -> int:
    return len(step.parent_ids) if kind == "migrate" else len(step.points) + 1


def heirs(children: Sequence[Place], sealed: Sequence[Piece]) -> dict[Place, Pieces]:
    """Return the sequence ids that each child inherits. Children without any are left out."""
    found = {}
    for child in children:
        assert child.name.segment is not None
        pieces = inherit(child.name.segment.range, sealed)
        if pieces:
            found[child] = pieces
    return found
