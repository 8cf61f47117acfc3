"""Layout changes under load with crashes, then healing, then judgement.

The seed draws everything: how many segments, keys, producers and consumers there are, which faults happen and
when, and how small the limits are. After the faults everything is healed and the run must come to its end
within bounded virtual time; then the history is checked and the state is looked over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Container
from functools import partial
from itertools import count
from typing import TypeVar

from anabranch.broker.broker import Broker
from anabranch.client.producer import AsyncProducer
from anabranch.config import BrokerConfig
from anabranch.controller.controller import TopicController
from anabranch.errors import AnabranchError, LayoutError, SegmentNotFoundError
from anabranch.metadata.topics import layout_of
from anabranch.model.hashing import equal_bucket_splits, key_hash, segment_hash
from anabranch.model.ids import MessageId
from anabranch.model.layout import Layout
from anabranch.model.policy import AutoScalePolicy
from anabranch.model.ranges import HashRange
from anabranch.model.routing import Router
from anabranch.testing.checkers import Outcome, Sent, violations
from anabranch.testing.cluster import Cluster
from anabranch.testing.network import Mode
from anabranch.testing.readers import CHECKPOINT, QUEUE, STREAM, TOPIC, Readers, persist
from anabranch.testing.shape import FAILPOINTS, OPERATIONS, draw
from anabranch.testing.simloop import SimLoop, SimProcess, SimulationError
from anabranch.testing.wiretap import WireTap
from anabranch.testing.witness import Witness, behind

T = TypeVar("T")

SOMETIMES = (
    *(f"died at {step}" for step in FAILPOINTS),
    *(f"{kind} asked for" for kind in OPERATIONS),
    *(f"link {kind}" for kind in ("reset", "cut", "hold", "swallow")),
    "broker paused",
    "checkpoint restored",
    "checkpoint saved",
    "consumer killed",
    "delivered again",
    "delivery taken back",
    "given back",
    "killed while starting",
    "machine lost",
    "message crossed a seal",
    "operation interrupted",
    "process killed",
)
"""What must happen in some of many runs; a generator that cannot produce a case tests nothing."""

ATTEMPTS_MAX = 20
AUDITS_MAX = 40

HEAL_S = 60.0
"""Within this long after the last fault everything must be back to normal."""


class Scenario:
    """One run of one seed."""

    def __init__(self, seed: int, step: str | None = None, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.step = step
        self.loop = SimLoop(f"{seed} {step}", keep_trace=keep_trace)
        self.rng = self.loop.random("scenario")
        self.shape = draw(self.rng, step)
        self.counts: Counter[str] = Counter()
        self.cluster: Cluster
        self.readers: Readers
        self.witness: Witness
        self.tap: WireTap
        self.found: list[str] = []
        self._clients: list[SimProcess] = []
        self._consumers: dict[str, tuple[str, SimProcess]] = {}
        """Those that live: what they read, and where."""
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: dict[str, asyncio.Task[None]] = {}
        self._heirs = 0
        """Consumers that are about to take the place of one that was killed."""

    def run(self) -> list[str]:
        """Run it; what must not have happened, in words."""
        with self.loop:
            try:
                self.loop.run(self._run(), limit_s=self.shape.busy_s + 10 * HEAL_S)
            except SimulationError as error:
                self.found.append(f"{type(error).__name__}: {error}")
            self.found += self.loop.errors
        return self.found

    async def _run(self) -> None:
        shape = self.shape
        config = self._config()
        self.cluster = cluster = Cluster(self.loop, config=config, limits=shape.limits)
        cluster.counts = self.counts
        self.readers = Readers(cluster, shape, self.counts)
        cluster.deaths = list(shape.deaths)
        keeping = self.loop.create_task(cluster.keep_up(), name="keep the broker up")
        self.witness = witness = Witness(
            self.loop,
            cluster.history,
            self.counts,
            TOPIC,
            ordered=[STREAM],
            grace_s=config.consumer_grace_s,
            log_of=cluster.log_of,
            committed=self._look_at_children,
        )
        cluster.tree.seen = witness.changed
        cluster.network.tap = self.tap = WireTap(witness)
        await cluster.in_broker(lambda broker: broker.controllers.create_topic(TOPIC, shape.segments))
        for subscription in self.readers.subscriptions:
            await cluster.with_controller(TOPIC, partial(_subscribe, subscription))
        counts = {STREAM: shape.consumers, QUEUE: shape.queue_consumers, CHECKPOINT: shape.checkpoints}
        for kind, wanted in counts.items():
            for number in range(wanted):
                self._start_consumer(kind, f"{kind}-{number}")
        for number in range(shape.producers):
            process = self._process(f"producer-{number}")
            self._producing.append(process.spawn(self._produce(process)))
        cluster.store_trouble.refuse = shape.store_trouble.refuse
        cluster.store_trouble.lose_reply = shape.store_trouble.lose_reply
        await asyncio.gather(self._operations(), self._faults())
        cluster.store_trouble.refuse = cluster.store_trouble.lose_reply = 0.0
        cluster.deaths.clear()
        cluster.network.heal()
        if await self._settled():
            await self._probe()
            await self._audit()
            await self._end_consumers()
            await self._look_again()
        witness.settle_doubts()
        self.found += violations(
            cluster.history,
            ordered=[kind for kind in self.readers.kinds if kind != QUEUE],
            unordered=[kind for kind in self.readers.kinds if kind == QUEUE],
            exact=[kind for kind in self.readers.kinds if kind == CHECKPOINT],
        )
        await cluster.stop_broker()
        keeping.cancel()

    def _config(self) -> BrokerConfig:
        rng = self.rng
        return BrokerConfig(
            auto_scale=self._policy(),
            auto_scale_interval_s=0.2,
            load_report_interval_s=0.5,
            keep_alive_s=rng.choice((2.0, 10.0)),
            consumer_grace_s=rng.choice((0.5, 5.0)),
            dispatch_max_entries=rng.choice((1, 7, 100)),
            publish_pending_bytes_max=64 * 1024,
            bucket_budget=rng.choice((1, 4, 8)),
        )

    def _policy(self) -> AutoScalePolicy:
        """Off, or so eager that it acts within a second or two."""
        if not self.shape.auto_scale:
            return AutoScalePolicy(enabled=False)
        return AutoScalePolicy(
            max_segments=8,
            split_cooldown_seconds=0.3,
            merge_cooldown_seconds=0.5,
            merge_window_seconds=0.3,
            rebucket_cooldown_seconds=0.3,
            split_msg_rate_in_threshold=50,
            merge_msg_rate_in_threshold=20,
        )

    def _process(self, name: str) -> SimProcess:
        process = SimProcess(self.loop, name)
        self._clients.append(process)
        link = self.cluster.link(process)
        link.latency_s = self.rng.choice(((0.0001, 0.001), (0.001, 0.02), (0.0, 0.1)))
        link.pieces = self.rng.choice((0.0, 0.2))
        return process

    # Load.

    async def _produce(self, process: SimProcess) -> None:
        shape, rng = self.shape, self.loop.random(process.name)
        async with self.cluster.client(process) as client:
            producer: AsyncProducer[bytes] = await persist(
                lambda: client.create_producer(
                    str(TOPIC), name=process.name, send_timeout=0, batching=shape.batching
                )
            )
            room = asyncio.Semaphore(shape.in_flight_max)
            async with asyncio.TaskGroup() as outcomes:
                for _ in range(shape.messages):
                    await room.acquire()
                    sent = self.cluster.history.send(process.name, f"key-{rng.randrange(shape.keys)}")
                    self._aim(sent)
                    future = await producer.enqueue(sent.uid.encode(), key=sent.key)
                    outcomes.create_task(self._outcome(sent, future, room))
                    if shape.pause_s:
                        await asyncio.sleep(rng.uniform(0, shape.pause_s))
                await producer.flush()

    def _aim(self, sent: Sent) -> None:
        layouts = self.cluster.history.layouts
        if layouts:
            self.readers.aimed[sent.uid] = Router(layouts[-1]).segment_for(key_hash(sent.key)).id

    async def _outcome(self, sent: Sent, future: Awaitable[MessageId], room: asyncio.Semaphore) -> None:
        try:
            id_ = await future
        except AnabranchError as error:
            self.found.append(f"the sender of {sent.uid} saw {type(error).__name__}: {error}")
            return
        finally:
            room.release()
        sent.outcome = Outcome.OK
        if id_.ledger >= 0:
            sent.place = (id_.segment, id_.ledger, id_.entry, id_.batch_index)
        self.readers.confirmed(sent.uid)

    def _start_consumer(self, kind: str, name: str) -> None:
        process = self._process(name)
        self._consumers[name] = kind, process
        rng = self.loop.random(f"{name} {len(self._clients)}")
        self._consuming[name] = process.spawn(self.readers.read(kind, process, rng))

    # Layout changes and faults.

    async def _operations(self) -> None:
        if self.step:
            # Another change or a store that refuses may get in its way; in the end it dies at the step.
            for _ in range(ATTEMPTS_MAX):
                await self._change(self.step.partition(".")[0])
                if self.counts[f"died at {self.step}"]:
                    break
        for _ in range(self.shape.operations):
            await self._change(self.rng.choice(OPERATIONS))

    async def _change(self, kind: str) -> None:
        await asyncio.sleep(self.rng.uniform(0, self.shape.busy_s / (self.shape.operations + 1)))
        self.counts[f"{kind} asked for"] += 1
        try:
            await self.cluster.with_controller(TOPIC, partial(self._operate, kind))
        except (LayoutError, SegmentNotFoundError):
            self.counts["operation overtaken"] += 1
        except AnabranchError as error:
            # With a store that refuses, the caller hears of it and the controller finishes later.
            if not error.retryable:
                raise
            self.counts["operation interrupted"] += 1

    async def _operate(self, kind: str, controller: TopicController) -> None:
        active = controller.layout.active
        if kind == "merge" and len(active) == 1:
            active = (await controller.split(active[0].id)).active
        chosen = self.rng.randrange(len(active) - (kind == "merge"))
        segment = active[chosen]
        if kind == "split":
            parts = self.rng.randrange(2, 5)
            await controller.split(segment.id, [part.start for part in segment.range.parts(parts)[1:]])
        elif kind == "merge":
            run = active[chosen : chosen + self.rng.randrange(2, 4)]
            await controller.merge([one.id for one in run])
        else:
            await controller.rebucket(segment.id, equal_bucket_splits(segment.bucket_count % 8 + 1))

    async def _faults(self) -> None:
        shape = self.shape
        planned: list[Callable[[], None]] = [self._kill_broker] * shape.kills
        planned += [self._hurt_a_link] * shape.link_faults
        planned += [self._kill_a_consumer] * shape.consumer_deaths
        planned += [self._pause_broker] * shape.pauses
        times = sorted(self.rng.uniform(0, shape.busy_s) for _ in planned)
        self.rng.shuffle(planned)
        for time, fault in zip(times, planned, strict=True):
            await asyncio.sleep(max(0.0, time - self.loop.time()))
            fault()
        await asyncio.sleep(max(0.0, shape.busy_s - self.loop.time()))

    def _kill_broker(self) -> None:
        self.cluster.kill_broker(machine=self.rng.random() < 0.5)

    def _pause_broker(self) -> None:
        self.cluster.pause_broker(self.rng.uniform(0.1, 5.0))

    def _hurt_a_link(self) -> None:
        network = self.cluster.network
        link = self.cluster.link(self.rng.choice(self._clients))
        kind = self.rng.choice(("reset", "cut", "hold", "swallow"))
        self.counts[f"link {kind}"] += 1
        if kind == "reset":
            network.reset(link)
        elif kind == "cut":
            network.cut(link)
        else:
            network.set_mode(link, Mode.HELD if kind == "hold" else Mode.BLACK_HOLE)
            self.loop.call_later(self.rng.uniform(0.01, 8.0), network.set_mode, link, Mode.OPEN)

    def _kill_a_consumer(self) -> None:
        if not self._consumers:
            return
        name = self.rng.choice(sorted(self._consumers))
        kind, process = self._consumers.pop(name)
        process.kill(machine=self.rng.random() < 0.3)
        self.counts["consumer killed"] += 1
        heir = name if self.rng.random() < 0.5 else f"{name}+"
        self._heirs += 1
        self.loop.call_later(self.rng.uniform(0.01, 2.0), self._start_heir, kind, heir)

    def _start_heir(self, kind: str, name: str) -> None:
        self._heirs -= 1
        self._start_consumer(kind, name)

    # The end.

    async def _settled(self) -> bool:
        """Wait until every message is stored and received; False when that takes too long."""
        deadline = self.loop.time() + HEAL_S
        while self.loop.time() < deadline:
            if all(task.done() for task in self._producing) and not self._missing() and not self._heirs:
                for task in self._producing:
                    task.result()
                return True
            await asyncio.sleep(0.1)
        missing = self._missing()
        stuck = [task for task in self._producing if not task.done()]
        unknown = [s.uid for s in self.cluster.history.sent.values() if s.outcome is Outcome.UNKNOWN]
        self.found.append(
            f"not healed after {HEAL_S:g} s: {len(stuck)} producers wait, {len(unknown)} messages are not "
            f"confirmed ({', '.join(unknown[:3])}), {len(missing)} not received "
            f"({', '.join(missing[:3])})"
        )
        return False

    def _missing(self) -> list[str]:
        return [f"{kind}: {uid}" for kind, uids in self.readers.missing.items() for uid in uids]

    async def _probe(self) -> None:
        """Every hash is writable without help."""
        layout = await self._layout()
        process = self._process("prober")

        async def probe() -> None:
            async with self.cluster.client(process) as client:
                producer: AsyncProducer[bytes] = await client.create_producer(str(TOPIC), name="prober")
                for segment in layout.active:
                    sent = self.cluster.history.send("prober", key_in(segment.range))
                    await asyncio.wait_for(producer.send(sent.uid.encode(), key=sent.key), 10)
                    sent.outcome = Outcome.OK
                    self.readers.confirmed(sent.uid)

        try:
            await process.spawn(probe())
        except (AnabranchError, TimeoutError) as error:
            self.found.append(f"some hash is not writable: {type(error).__name__}: {error}")
        await self._settled()

    async def _audit(self) -> None:
        """Nothing stays half done or left over, and the subscription is everywhere."""
        wrong = await self._look_over()
        for _ in range(AUDITS_MAX):
            if not wrong:
                return
            # Auto-scaling may have been in the middle of something.
            await asyncio.sleep(0.5)
            wrong = await self._look_over()
        self.found += wrong

    def _look_at_children(self, layout: Layout) -> None:
        """When a layout becomes visible its new segments have every subscription already (L3).

        Consumers make what is missing as they come; who looked later would not know.
        """
        before = self.cluster.history.layouts[:-1]
        if not before:
            return
        for id_ in sorted(layout.segments.keys() - before[-1].segments.keys()):
            log = self.cluster.log_of(str(TOPIC.segment_name(layout.segments[id_].range, id_)))
            if log is not None:
                self.found += self._absent(id_, log.cursors)

    def _absent(self, segment: int, cursors: Container[str]) -> list[str]:
        absent = [name for name in self.readers.subscriptions if name not in cursors]
        return [f"segment {segment} lacks the subscription {name}" for name in absent]

    async def _look_over(self) -> list[str]:
        record = await self.cluster.record(TOPIC)
        assert record is not None
        wrong = [f"a {record.intent.kind} is still under way"] if record.intent is not None else []
        layout = layout_of(record)
        expected = {str(TOPIC.segment_name(s.range, s.id)): s for s in layout.segments.values()}

        async def look(broker: Broker) -> None:
            stored = broker.stores.names()
            wrong.extend(f"log {name} belongs to no segment" for name in stored if name not in expected)
            for name, segment in expected.items():
                log = broker.stores.get(name)
                if log is None:
                    wrong.append(f"segment {segment.id} has no log")
                elif log.sealed == segment.active:
                    wrong.append(f"segment {segment.id} is {segment.state}, its log says otherwise")
                else:
                    wrong.extend(self._absent(segment.id, log.cursors))

        await self.cluster.in_broker(look)
        return wrong

    async def _layout(self) -> Layout:
        record = await self.cluster.record(TOPIC)
        assert record is not None
        return layout_of(record)

    async def _end_consumers(self) -> None:
        """Let all consumers close, which must work too; afterwards nothing is on its way."""
        self.readers.over = True
        for name in self._consumers:
            try:
                await asyncio.wait_for(asyncio.shield(self._consuming[name]), HEAL_S)
            except TimeoutError:
                self.found.append(f"{name} could not close within {HEAL_S:g} s")
        self.readers.over = False
        for subscription in self.readers.subscriptions:
            self.cluster.history.note_quiet(subscription)

    async def _look_again(self) -> None:
        """After one more crash newcomers are given nothing whose acknowledgement was confirmed.

        Whoever comes with a checkpoint gets the rest.
        """
        self.cluster.kill_broker(machine=True)
        await self.cluster.in_broker(lambda broker: asyncio.sleep(0))
        self._consumers.clear()
        for kind in self.readers.kinds:
            self._start_consumer(kind, f"{kind} newcomer")
        await asyncio.sleep(3.0)
        await self._settled()
        await self._end_consumers()


async def _subscribe(subscription: str, controller: TopicController) -> None:
    await controller.ensure_subscription(
        subscription, "QUEUE" if subscription == QUEUE else "STREAM", "earliest"
    )


def key_in(part: HashRange) -> str:
    """A key whose hash falls into a range."""
    return next(key for key in map(str, count()) if segment_hash(key_hash(key)) in part)
