"""`anabranch topic ...`: topics and their layouts, over the admin API."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.cli.answers import at_most_one, confirmed, exactly_one, tell
from anabranch.cli.options import ADMIN, AdminOptions, Topic, Yes, command_group
from anabranch.cli.role import role_of
from anabranch.cli.topics import classic
from anabranch.cli.topics.classic import scalable_topic_of, topic_of
from anabranch.cli.topics.topic_picture import print_picture
from anabranch.cli.topics.topic_text import classic_lines, ranges_text, why_lines
from anabranch.errors import InvalidConfigurationError, counted
from anabranch.model.names import TopicName

app = command_group(
    "topic", "Create, show, split, merge, rebucket, migrate and delete topics.", help_epilogue=""
)

Segment = Annotated[int, Parameter(help="id of the segment")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TopicShape:
    """The size and the properties of a new topic."""

    segments: Annotated[
        int | None, Parameter(metavar="N", help="number of segments of a scalable topic (1)")
    ] = None
    partitions: Annotated[
        int | None,
        Parameter(metavar="N", help="number of partitions of a classic topic (not partitioned)"),
    ] = None
    properties: Annotated[
        tuple[str, ...],
        Parameter(name="--property", metavar="KEY=VALUE", help="a property; may be repeated"),
    ] = ()


TOPIC_SHAPE: Final = TopicShape()


@app.command
def create(
    topic: Topic,
    /,
    *,
    shape: TopicShape = TOPIC_SHAPE,
    at: AdminOptions = ADMIN,
) -> int:
    """Create a topic."""
    name = topic_of(topic)
    pairs = pairs_of(shape.properties)
    if name.is_scalable and shape.partitions is not None:
        raise InvalidConfigurationError(
            "a scalable topic has segments; --partitions is for persistent:// topics"
        )
    if not name.is_scalable and (shape.segments is not None or pairs):
        raise InvalidConfigurationError("--segments and --property are for topic:// topics")
    with role_of(at, os.environ).open_admin() as admin:
        if name.is_scalable:
            count, noun = 1 if shape.segments is None else shape.segments, "segment"
            admin.create_topic(name, count, pairs)
        else:
            count, noun = shape.partitions or 0, "partition"
            classic.create(admin, name, count)
    size = f"with {counted(count, noun)}" if count else "without partitions"
    return tell({"topic": str(name), f"{noun}s": count}, f"created {name} {size}", as_json=at.as_json)


@app.command
def show(topic: Topic, /, *, at: AdminOptions = ADMIN) -> int:
    """Draw the segments of a topic; of a classic topic, show its partitions and subscriptions."""
    name = topic_of(topic)
    with role_of(at, os.environ).open_admin() as admin:
        if not name.is_scalable:
            figures, successor = classic.stats(admin, name), classic.successor_of(admin, name)
            lines = classic_lines(str(name), figures, successor)
            return tell({"stats": figures}, *lines, as_json=at.as_json)
        metadata, stats = plain(admin.topic_metadata(name)), plain(admin.topic_stats(name))
    if at.as_json:
        return tell({"metadata": metadata, "stats": stats}, as_json=True)
    print_picture(name, metadata, stats)
    return 0


@app.command(name="list")
def list_topics(
    namespace: Annotated[str, Parameter(help="public/default if left out")] = "public/default",
    /,
    *,
    properties: Annotated[
        tuple[str, ...],
        Parameter(
            name="--property",
            metavar="KEY=VALUE",
            help="list only scalable topics with this property; may be repeated",
        ),
    ] = (),
    at: AdminOptions = ADMIN,
) -> int:
    """List the topics of a namespace, the classic ones behind the scalable ones."""
    pairs = pairs_of(properties)
    with role_of(at, os.environ).open_admin() as admin:
        topics = admin.list_topics(namespace, pairs)
        if not pairs:
            migrated = {name.replace("topic://", "persistent://", 1) for name in topics}
            topics += [name for name in classic.list_classic(admin, namespace) if name not in migrated]
    if not topics and sys.stdout.isatty() and not at.as_json:
        print(f"namespace {namespace} has no topics; make one with `anabranch topic create NAME`")
    return tell(topics, *topics, as_json=at.as_json)


@app.command
def delete(
    topic: Topic,
    /,
    *,
    force: Annotated[bool, Parameter(help="also while consumers are connected")] = False,
    yes: Yes = False,
    at: AdminOptions = ADMIN,
) -> int:
    """Delete a topic with everything in it."""
    name = topic_of(topic)
    if not confirmed(f"delete {name} with everything in it", yes=yes):
        return 1
    with role_of(at, os.environ).open_admin() as admin:
        if name.is_scalable:
            admin.delete_topic(name, force=force)
        else:
            classic.delete(admin, name, force=force)
    return tell({"deleted": str(name)}, f"deleted {name}", as_json=at.as_json)


@app.command
def migrate(
    topic: Topic,
    /,
    *,
    force: Annotated[
        bool, Parameter(help="also when connected clients do not support scalable topics")
    ] = False,
    at: AdminOptions = ADMIN,
) -> int:
    """Turn the classic topic of this name into a scalable one."""
    name = topic_of(topic).topic
    with role_of(at, os.environ).open_admin() as admin:
        admin.migrate(name, force=force)
        segments = plain(admin.topic_metadata(name))["segments"].values()
    active = sum(segment["state"] == "ACTIVE" for segment in segments)
    text = f"migrated {name} to {counted(active, 'segment')}"
    return tell({"topic": str(name), "segments": active}, text, as_json=at.as_json)


@app.command
def why(topic: Topic, /, *, at: AdminOptions = ADMIN) -> int:
    """Explain the operations under way, the waiting segments and the decisions of auto-scaling."""
    with role_of(at, os.environ).open_admin() as admin:
        answer = plain(admin.why(scalable_topic_of(admin, topic)))
    return tell(answer, *why_lines(answer, time.time()), as_json=at.as_json)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """The slots at which a segment is split."""

    parts: Annotated[int | None, Parameter(metavar="N", help="into N equal parts")] = None
    points: Annotated[
        str | None,
        Parameter(
            metavar="SLOT,SLOT",
            help="at these first slots of the new segments, like 0x4000,0x8000",
        ),
    ] = None
    by_traffic: Annotated[bool, Parameter(help="into parts of similar load, not of equal width")] = False


SPLIT_PLAN: Final = SplitPlan()


@app.command
def split(
    topic: Topic,
    segment: Segment,
    /,
    *,
    plan: SplitPlan = SPLIT_PLAN,
    at: AdminOptions = ADMIN,
) -> int:
    """Split one segment, in the middle by default."""
    at_most_one(parts=plan.parts, points=plan.points)
    slots = _slots("--points", plan.points)
    with role_of(at, os.environ).open_admin() as admin:
        name = scalable_topic_of(admin, topic)
        admin.split(name, segment, points=slots, parts=plan.parts, by_traffic=plan.by_traffic)
        made = _children(admin, name, segment)
    text = f"split segment {segment} into {ranges_text(made)}"
    return tell({"topic": str(name), "parents": [segment], "children": made}, text, as_json=at.as_json)


@app.command
def merge(
    topic: Topic,
    first: Annotated[int, Parameter(name="SEGMENT", help="ids of the segments")],
    /,
    *others: Annotated[int, Parameter(name="SEGMENT", show=False)],
    at: AdminOptions = ADMIN,
) -> int:
    """Merge two or more neighbouring segments into one."""
    segments = [first, *others]
    with role_of(at, os.environ).open_admin() as admin:
        name = scalable_topic_of(admin, topic)
        admin.merge(name, segments)
        made = _children(admin, name, first)
    text = f"merged segments {', '.join(map(str, segments))} into {ranges_text(made)}"
    return tell({"topic": str(name), "parents": segments, "children": made}, text, as_json=at.as_json)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BucketPlan:
    """The buckets of the new segment."""

    buckets: Annotated[int | None, Parameter(metavar="N", help="N buckets of equal width")] = None
    boundaries: Annotated[
        str | None,
        Parameter(
            metavar="SLOT,SLOT",
            help="at these first slots of the buckets after the first",
        ),
    ] = None
    by_traffic: Annotated[
        bool, Parameter(help="with --buckets: buckets of similar load, not of equal width")
    ] = False


BUCKET_PLAN: Final = BucketPlan()


@app.command
def rebucket(
    topic: Topic,
    segment: Segment,
    /,
    *,
    plan: BucketPlan = BUCKET_PLAN,
    at: AdminOptions = ADMIN,
) -> int:
    """Replace a segment by one with other buckets, which consumers can share."""
    exactly_one(buckets=plan.buckets, boundaries=plan.boundaries)
    slots = _slots("--boundaries", plan.boundaries)
    with role_of(at, os.environ).open_admin() as admin:
        name = scalable_topic_of(admin, topic)
        admin.rebucket(name, segment, bucket_count=plan.buckets, boundaries=slots, by_traffic=plan.by_traffic)
        made = _children(admin, name, segment)
    count = plan.buckets or len(slots) + 1
    text = f"replaced segment {segment} by {ranges_text(made)} with {counted(count, 'bucket')}"
    data = {"topic": str(name), "parents": [segment], "children": made, "buckets": count}
    return tell(data, text, as_json=at.as_json)


def pairs_of(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the properties that an operator writes; raises InvalidConfigurationError."""
    properties: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidConfigurationError(f"--property {text!r}: write it as key=value")
        if properties.setdefault(key, value) != value:
            raise InvalidConfigurationError(f"--property {key} is given twice, with different values")
    return properties


def _children(admin: AdminClient, name: TopicName, segment: int) -> list[dict[str, Any]]:
    segments = plain(admin.topic_metadata(name))["segments"]
    found = [segments[str(id_)] for id_ in segments[str(segment)]["childIds"]]
    return [
        {"segment": one["segmentId"], "start": one["hashRange"]["start"], "end": one["hashRange"]["end"]}
        for one in found
    ]


def _slots(option: str, text: str | None) -> list[int]:
    try:
        return [int(part, 0) for part in text.split(",")] if text else []
    except ValueError:
        raise InvalidConfigurationError(
            f"{option} {text!r}: write slots between 1 and 65535 separated by commas, like 0x4000,0x8000"
        ) from None
