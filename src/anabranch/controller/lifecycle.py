"""Creates and deletes the records and storage of scalable topics, in steps that may be repeated.

A name keeps its lineage beyond its topics: a recreated topic continues with higher ids, epochs and terms, so
messages, caches and checkpoints of the old topic are never mistaken for those of the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_layout
from typing import NamedTuple

import msgspec

from anabranch.aio import together
from anabranch.controller.decide import operation
from anabranch.controller.decide.operation import Origin
from anabranch.controller.topic.leadership import ControllerContext
from anabranch.errors import AnabranchError, TopicExistsError
from anabranch.metadata.layouts import layout_of, with_layout
from anabranch.metadata.records import GarbageRecord, LineageRecord, SubscriptionKind, TopicRecord
from anabranch.model.hashing import equal_bucket_splits, key_hash
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import Place, TopicName
from anabranch.model.ranges import initial_ranges

replace = msgspec.structs.replace


class Migration(NamedTuple):
    """The classic logs that a scalable topic continues. Each must exist and have all of the subscriptions."""

    classic: Sequence[Place]
    subscriptions: Mapping[str, SubscriptionKind]
    properties: Mapping[str, str]


async def record_topic(
    context: ControllerContext, name: TopicName, count: int, properties: Mapping[str, str]
) -> None:
    """Write the record of a new topic, whose leader then creates the segments. Raises TopicExistsError."""
    now_ms = context.clock.wall_ms()
    stores = context.stores() or (0,)
    layout = Layout.initial(count, now_ms=now_ms, bucket_budget=context.settings.bucket_budget)
    layout = operation.put(layout, dict(enumerate(operation.spread((), count, stores))))
    begin = await _reserve(context, name, segments=count, epochs=1)
    layout = _begin_at(layout, begin.next_segment_id, begin.epoch)
    intent = operation.plan_create(layout, name, Origin(begin.term, now_ms))
    plain = replace(begin, properties=dict(properties), created_at_ms=now_ms, intent=intent)
    await context.topics.create(name, with_layout(plain, layout))
    await context.failpoints.reach("create.planned")


async def record_migration(context: ControllerContext, name: TopicName, migration: Migration) -> None:
    """Write the record of a topic whose first segments are classic topics. Raises TopicExistsError."""
    now_ms = context.clock.wall_ms()
    stores = context.stores() or (0,)
    count = len(migration.classic)
    begin = await _reserve(context, name, segments=2 * count, epochs=2)
    epoch, first = begin.epoch, begin.next_segment_id
    parts = initial_ranges(count)
    segments = {
        first + at: Segment(
            first + at,
            parts[at],
            created_epoch=epoch,
            created_ms=now_ms,
            legacy_topic=str(place.name),
            store=place.store,
        )
        for at, place in enumerate(migration.classic)
    }
    layout = Layout(epoch, first + count, segments)
    splits = equal_bucket_splits(max(1, context.settings.bucket_budget // count))
    intent = replace(
        operation.plan_migrate(layout, name, splits, Origin(begin.term, now_ms, stores=stores)),
        subscriptions=dict(migration.subscriptions),
    )
    plain = replace(begin, properties=dict(migration.properties), created_at_ms=now_ms, intent=intent)
    await context.topics.create(name, with_layout(plain, operation.reserve(layout, intent)))
    await context.failpoints.reach("migrate.recorded")


async def _reserve(context: ControllerContext, name: TopicName, *, segments: int, epochs: int) -> TopicRecord:
    """Reserve ids, epochs and a term that no topic of this name has used. Raises TopicExistsError."""
    stores = context.stores() or (0,)
    home = stores[key_hash(str(name)) % len(stores)]
    found = await context.topics.find(name)
    if found is not None and found.deleted:
        await forget_topic(context, name)
    elif found is not None:
        raise TopicExistsError(f"{name} exists already")

    def reserve(lineage: LineageRecord) -> LineageRecord:
        return replace(
            lineage,
            next_segment_id=lineage.next_segment_id + segments,
            next_epoch=lineage.next_epoch + epochs,
            next_term=lineage.next_term + 1,
            store=home,
        )

    lineage = await context.topics.update_lineage(name, reserve)
    return TopicRecord(
        epoch=lineage.next_epoch - epochs,
        next_segment_id=lineage.next_segment_id - segments,
        segments={},
        incarnation=await context.topics.next_incarnation(),
        store=home,
        term=lineage.next_term - 1,
    )


def _begin_at(layout: Layout, first_id: int, epoch: int) -> Layout:
    """Return the initial layout with higher ids and a higher epoch."""
    segments = {
        first_id + id_: replace_layout(segment, id=first_id + id_, created_epoch=epoch)
        for id_, segment in layout.segments.items()
    }
    return Layout(epoch, first_id + layout.next_id, segments)


async def forget_topic(context: ControllerContext, name: TopicName) -> None:
    """List the storage of a topic that is marked as deleted in its lineage, then remove its records."""
    record = await context.topics.find(name)
    if record is None or not record.deleted:
        return
    layout = layout_of(record)
    places = [Place(operation.segment_name(name, s), s.store) for s in layout.segments.values()]
    if record.intent is not None:
        places += operation.children(record.intent)
    now_ms = context.clock.wall_ms()
    dropped = (GarbageRecord(name=str(p.name), since_ms=now_ms, store=p.store) for p in places)
    leftovers = [*record.garbage, *dropped]

    def add_garbage(lineage: LineageRecord) -> LineageRecord:
        garbage = {item.name: item for item in (*leftovers, *lineage.garbage)}
        return replace(
            lineage,
            next_segment_id=max(lineage.next_segment_id, record.next_segment_id),
            next_epoch=max(lineage.next_epoch, record.epoch + 1),
            next_term=max(lineage.next_term, record.term + 1),
            garbage=tuple(garbage[text] for text in sorted(garbage)),
        )

    await context.topics.update_lineage(name, add_garbage)
    await context.failpoints.reach("delete.listed")
    await context.topics.delete(name, record.incarnation)
    await context.failpoints.reach("delete.forgotten")


async def delete_storage(context: ControllerContext, name: TopicName) -> bool:
    """Delete the storage of earlier topics of this name. Returns False if some could not be deleted."""
    lineage = await context.topics.load_lineage(name)
    if not lineage.garbage:
        return True
    # If the topic was recreated, the owners of its segments know its newer term and refuse older ones.
    recreated = await context.topics.find(name)
    term = max(lineage.next_term - 1, recreated.term if recreated is not None else 0)
    deleted = await together(_delete(context, item, term) for item in lineage.garbage)
    gone = [item.name for item, done in zip(lineage.garbage, deleted, strict=True) if done]
    await context.failpoints.reach("delete.swept")
    if gone:
        lineage = await context.topics.update_lineage(
            name, lambda found: replace(found, garbage=tuple(g for g in found.garbage if g.name not in gone))
        )
    return not lineage.garbage


async def _delete(context: ControllerContext, item: GarbageRecord, term: int) -> bool:
    try:
        await context.delete_log(Place(TopicName.parse(item.name), item.store), term)
    except AnabranchError:
        return False
    return True
