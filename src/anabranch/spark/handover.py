"""Converts between a Spark cut and a client checkpoint, so that one reader continues where the other stopped.

It asks a broker, which knows both the position of a message and its id.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from anabranch.aio import new_event_loop
from anabranch.client.bulk.bulk_client import BulkClient
from anabranch.client.bulk.segment_tails import SegmentTails
from anabranch.errors import InvalidConfigurationError
from anabranch.model.checkpoint import Checkpoint, CheckpointKind
from anabranch.spark.brokers.thread_client import new_bulk_client
from anabranch.spark.decide.source.handover import (
    StoredPlace,
    check_still_there,
    checkpoint_from,
    cut_at,
    known_position,
    lowest_ids,
)
from anabranch.spark.decide.source.offsets import Cut, TopicCut, decode, encode
from anabranch.spark.decide.source.starts import resolve
from anabranch.spark.decide.source.topic_names import short_name
from anabranch.spark.decide.source.topology import SegmentSpan, Topology
from anabranch.spark.options.given import GivenOptions
from anabranch.spark.options.queries import text_of

T = TypeVar("T")


def cut_to_checkpoint(
    service_url: str,
    offset: str | Mapping[str, Any],
    topic: str | None = None,
    *,
    options: Mapping[str, object] | None = None,
) -> Checkpoint:
    """Return the checkpoint at which a CheckpointConsumer continues exactly where a Spark query stopped.

    `offset` is the JSON of a cut, such as `endOffset` in the progress of a query or a line of its offset log.
    `topic` chooses one of several topics. `options` are the `client.*` options of the source.

    Example:
        cut = {"v": 1, "topics": {"orders": {"segs": {"0": 3}}}}
        checkpoint = cut_to_checkpoint("pulsar://127.0.0.1:6650", cut)
        with Client("pulsar://127.0.0.1:6650") as client:
            consumer = client.create_checkpoint_consumer("orders", start=checkpoint)
            print(consumer.receive().data)
    """
    cut = decode(json.loads(offset) if isinstance(offset, str) else dict(offset))
    if not isinstance(cut, Cut):
        raise InvalidConfigurationError("a start that is not resolved yet has no positions to convert")
    name = _chosen(cut, topic)
    return _run(service_url, options, lambda client: checkpoint_of(client, name, cut.topics[name]))


def checkpoint_to_cut(
    service_url: str,
    topic: str,
    checkpoint: Checkpoint | bytes,
    *,
    options: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return the cut at which a Spark query continues after a checkpoint, for `startingOffsets`.

    If the buckets of a segment were read to different positions, the lowest one counts: some messages of the
    other buckets are read again, and none is missed.

    Example:
        with Client("pulsar://127.0.0.1:6650") as client:
            consumer = client.create_checkpoint_consumer("orders", start=Checkpoint.earliest())
            consumer.receive()
            cut = checkpoint_to_cut("pulsar://127.0.0.1:6650", "orders", consumer.checkpoint())
        orders = read_stream(spark, "pulsar://127.0.0.1:6650", "orders", options={"startingOffsets": cut})
    """
    given = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint.from_bytes(checkpoint)
    name = short_name(topic)
    cut = _run(service_url, options, lambda client: cut_of(client, name, given))
    return encode(Cut({name: cut}))


async def checkpoint_of(client: BulkClient, topic: str, cut: TopicCut) -> Checkpoint:
    """Return the checkpoint at a cut of one topic."""
    topology, names, tails = await _topology(client, topic)
    # Check the user's cut like a start: it must cover all keys, and no position may be beyond its segment.
    resolve(cut, topology, topic)
    entries = {}
    for id_, position in cut.positions.items():
        place = await tails.at_index(names[id_], position)
        entries[id_] = StoredPlace(*place[1:])
    return checkpoint_from(cut, topology, entries)


async def cut_of(client: BulkClient, topic: str, checkpoint: Checkpoint) -> TopicCut:
    """Return the cut of one topic at a checkpoint."""
    topology, names, tails = await _topology(client, topic)
    if checkpoint.is_latest:
        return resolve("latest", topology, topic)
    if checkpoint.kind is CheckpointKind.EARLIEST:
        return resolve("earliest", topology, topic)
    check_still_there(checkpoint, topology, topic)
    at_time = checkpoint.kind is CheckpointKind.AT_TIME
    ids = lowest_ids(checkpoint)
    places = {}
    for segment, name in names.items():
        position: int | None = 0
        if segment in ids:
            position = known_position(ids[segment], topology)
            if position is None:
                position = (await tails.after_id(name, ids[segment])).index
        if at_time:
            position = max(position or 0, (await tails.at_time(name, checkpoint.timestamp_ms)).index)
        places[segment] = position or 0
    return cut_at(places, topology)


async def _topology(client: BulkClient, topic: str) -> tuple[Topology, dict[int, str], SegmentTails]:
    found = await client.layout(topic)
    names = {id_: found.segment_topic(segment) for id_, segment in found.layout.segments.items()}
    tails = client.tails()
    found_tails = {id_: await tails.tail(name) for id_, name in names.items()}
    spans = {
        id_: SegmentSpan(tail.first_index, tail.next_index, tail.sealed, log=tail.log_id)
        for id_, tail in found_tails.items()
    }
    return Topology(found.layout, spans), names, tails


def _chosen(cut: Cut, topic: str | None) -> str:
    names = list(cut.topics)
    if topic is not None and short_name(topic) in names:
        return short_name(topic)
    if topic is None and len(names) == 1:
        return names[0]
    raise InvalidConfigurationError(f"name one of the topics of the cut: {', '.join(names)}")


def _run(
    service_url: str, options: Mapping[str, object] | None, work: Callable[[BulkClient], Awaitable[T]]
) -> T:
    """Run the work in a separate thread, because a notebook may have a running event loop in this one."""
    settings = GivenOptions(text_of(options or {}), (), (), "conversion").client()

    async def connected() -> T:
        async with new_bulk_client(service_url, settings) as client:
            return await work(client)

    def in_thread() -> T:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(connected())

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(in_thread).result()
