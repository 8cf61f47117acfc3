"""Members that read a scalable topic by buckets, and a publisher for all of its keys."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

from anabranch.model.hashing import bucket_hash, key_hash, segment_hash
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from anabranch.protocol.commands import Delivery
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.wire import WireClient, register_consumer, value_of

NAME = TopicName.parse("topic://public/default/orders")


def key_in(quarter: int, half: int) -> str:
    """A key of one quarter of the bucket hashes and one half of the segment hashes."""
    for number in itertools.count():
        raw = key_hash(f"k{number}")
        if bucket_hash(raw) >> 14 == quarter and segment_hash(raw) >> 15 == half:
            return f"k{number}"
    raise AssertionError


KEYS = {(quarter, half): key_in(quarter, half) for quarter in range(4) for half in range(2)}
LOW = {key for (quarter, _), key in KEYS.items() if quarter < 2}
HIGH = set(KEYS.values()) - LOW


class RoundPublisher:
    """Sends every key to the segment that takes it now."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.rounds = 0
        self._producers: dict[int, int] = {}
        self.sequence = itertools.count()

    async def round(self, layout: Layout, keys: Iterable[str] = tuple(KEYS.values())) -> None:
        """One more message of each key."""
        for key in keys:
            slot = segment_hash(key_hash(key))
            segment = next(s for s in layout.active if slot in s.range)
            if segment.id not in self._producers:
                self._producers[segment.id] = 100 + segment.id
                topic = str(NAME.segment_name(segment.range, segment.id))
                await self.client.producer(topic, self._producers[segment.id])
            value = f"{key}:{self.rounds}".encode()
            producer_id = self._producers[segment.id]
            self.client.publish(value, next(self.sequence), key=key, producer_id=producer_id)
            await self.client.receipt()
        self.rounds += 1


class BucketReader:
    """A registered consumer: reads what it is assigned and acknowledges all but the keys it is stuck on."""

    def __init__(self, client: WireClient, name: str, stuck: Iterable[str] = ()) -> None:
        self.client = client
        self.name = name
        self.stuck = set(stuck)
        self.got: list[tuple[str, int, int]] = []
        """Key, number and segment of each delivery."""
        self.updates = 0
        self.assigned: dict[int, pb.ScalableAssignedSegment] = {}
        self._generation = 0
        self._attached: dict[int, tuple[int, bool]] = {}
        """By consumer id the segment, and whether it is read by buckets."""
        self.deliveries: list[Delivery] = []
        """All of `got` that came out of a segment read by buckets."""
        self._unacked: list[tuple[str, Delivery]] = []
        self._ids = itertools.count(1000)

    async def register(self) -> None:
        answer = await register_consumer(self.client, self.name)
        self._follow(answer.assignment)

    def _follow(self, assignment: pb.ScalableConsumerAssignment) -> None:
        self.assigned = {segment.segment_id: segment for segment in assignment.segments}
        self._generation = assignment.generation

    async def _reconcile(self) -> None:
        """Give up what is not assigned any more, or in another way, and attach to what is."""
        for consumer_id, (segment_id, by_buckets) in list(self._attached.items()):
            wanted = self.assigned.get(segment_id)
            if wanted is None or bool(wanted.bucket_ranges) != by_buckets:
                del self._attached[consumer_id]
                await self.client.request(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=0))
        attached = {segment_id for segment_id, _ in self._attached.values()}
        for segment_id, segment in self.assigned.items():
            if segment_id not in attached:
                await self._attach(segment)

    async def _attach(self, segment: pb.ScalableAssignedSegment) -> None:
        options: dict[str, Any] = {"generation": self._generation}
        kind = pb.CommandSubscribe.Exclusive
        if segment.bucket_ranges:
            kind = pb.CommandSubscribe.Key_Shared
            parts = [pb.IntRange(start=part.start, end=part.end) for part in segment.bucket_ranges]
            options["keySharedMeta"] = pb.KeySharedMeta(
                keySharedMode=pb.STICKY, entryBucketDispatch=True, hashRanges=parts
            )
        consumer_id = next(self._ids)
        answer = await self.client.subscribe(
            segment.segment_topic, "stream", kind, consumer_id=consumer_id, name=self.name, **options
        )
        if isinstance(answer, pb.CommandSuccess):
            self._attached[consumer_id] = segment.segment_id, bool(segment.bucket_ranges)

    async def work(self) -> None:
        """Do what there is to do, for two seconds."""
        for _ in range(40):
            await self._reconcile()
            await asyncio.sleep(0.05)
            commands, self.client.inbox = self.client.inbox, []
            for command in commands:
                self._take(command)
            for key, delivery in self._unacked:
                if key not in self.stuck:
                    self.client.acknowledge(delivery, consumer_id=delivery.consumer_id)
            self._unacked = [pair for pair in self._unacked if pair[0] in self.stuck]

    def _take(self, command: Any) -> None:
        if isinstance(command, Delivery) and command.consumer_id in self._attached:
            key, number = value_of(command).decode().split(":")
            self.got.append((key, int(number), self._attached[command.consumer_id][0]))
            self._unacked.append((key, command))
            if self._attached[command.consumer_id][1]:
                self.deliveries.append(command)
        elif isinstance(command, pb.CommandCloseConsumer):
            self._attached.pop(command.consumer_id, None)
            self._unacked = [pair for pair in self._unacked if pair[1].consumer_id in self._attached]
        elif isinstance(command, pb.CommandScalableTopicAssignmentUpdate):
            self.updates += 1
            self._follow(command.assignment)

    def keys_of(self, *segments: int) -> set[str]:
        """The keys that came out of these segments."""
        return {key for key, _, segment in self.got if segment in segments}

    def check_order(self) -> None:
        numbers: dict[str, list[int]] = {}
        for key, number, _ in self.got:
            numbers.setdefault(key, []).append(number)
        for key, found in numbers.items():
            assert found == sorted(set(found)), f"{key} came as {found}"
