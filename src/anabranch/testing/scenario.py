"""Layout changes under load with crashes, then healing, then judgement.

The seed draws everything: how many segments, keys, producers and consumers there are, which faults happen and
when, and how small the limits are. After the faults everything is healed and the run must come to its end
within bounded virtual time; then the history is checked and the state is looked over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Container
from dataclasses import fields
from functools import partial
from itertools import count
from typing import TypeVar

from anabranch.broker.broker import Broker
from anabranch.client.producer import AsyncProducer
from anabranch.config import BrokerConfig
from anabranch.controller.port import Controller
from anabranch.controller.segments import StartAt
from anabranch.errors import (
    AnabranchError,
    ConflictError,
    LayoutError,
    NotFoundError,
    SegmentNotFoundError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from anabranch.ledger.port import SegmentLog
from anabranch.metadata.records import SubscriptionKind
from anabranch.metadata.topics import layout_of
from anabranch.model.hashing import equal_bucket_splits, key_hash, segment_hash
from anabranch.model.ids import MessageId
from anabranch.model.layout import Layout, Segment
from anabranch.model.names import TopicName
from anabranch.model.policy import AutoScalePolicy
from anabranch.model.ranges import HashRange
from anabranch.model.routing import Router
from anabranch.testing.checkers import Outcome, Sent, violations
from anabranch.testing.cluster import Cluster, Host
from anabranch.testing.faults import StoreTrouble
from anabranch.testing.network import Mode
from anabranch.testing.readers import CHECKPOINT, QUEUE, STREAM, TOPIC, Readers, persist
from anabranch.testing.shape import FAILPOINTS, OPERATIONS, draw
from anabranch.testing.simdisk import Platter
from anabranch.testing.simloop import SimLoop, SimProcess, SimulationError, State
from anabranch.testing.wiretap import WireTap
from anabranch.testing.witness import Witness, behind

T = TypeVar("T")

SOMETIMES = (
    *(f"died at {step}" for step in FAILPOINTS),
    *(f"{kind} asked for" for kind in OPERATIONS),
    *(f"link {kind}" for kind in ("reset", "cut", "hold", "swallow")),
    "broker paused",
    "broker stopped",
    "bucket changed hands",
    "checkpoint restored",
    "checkpoint saved",
    "clock jumped",
    "consumer evicted",
    "consumer killed",
    "consumer left",
    "consumer paused",
    "delivered again",
    "delivery taken back",
    "disk error",
    "ended after a disk error",
    "given back",
    "killed while starting",
    "machine lost",
    "message crossed a seal",
    "metadata stalled",
    "operation interrupted",
    "holder fenced",
    "late subscription deleted",
    "late subscription made",
    "lease lost",
    "paused broker was ended",
    "process killed",
    "reconnected",
    "stream sent back",
    "topic deleted",
    "store given back",
    "store given to another broker",
    "sender killed",
)
"""What must happen in some of many runs; a generator that cannot produce a case tests nothing."""

KINDS: tuple[SubscriptionKind, ...] = ("STREAM", "QUEUE")
STARTS: tuple[StartAt, ...] = ("earliest", "latest")

OTHER = TopicName("topic", "public", "default", "comes-and-goes")

OVERTAKEN = (
    TopicExistsError,
    TopicNotFoundError,
    NotFoundError,
    ConflictError,
    LayoutError,
    SegmentNotFoundError,
)
"""What somebody may hear whose earlier attempt was interrupted and has had its effect since."""

ATTEMPTS_MAX = 20
AUDITS_MAX = 40

CLOCK_ERROR_MS = 3_600_000
"""How wrong wall clocks are at most, at the start and after a jump."""

TAKEOVER_S = 2.0
"""How long after the end of a lease the next owner of a store may take, recovery included."""

REWIND_S = 20.0
"""Until then a seek has taken effect, also one that was interrupted."""

HEAL_S = 60.0
"""Within this long after the last fault everything must be back to normal, as far as it is not just slow."""


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
        self._late: dict[str, int] = {}
        """Subscriptions that were confirmed during the run, and in which epoch."""
        self._attempted: dict[str, None] = {}
        """Those that may exist."""
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
        if shape.clock_jumps:
            cluster.clock_offsets_ms = (-CLOCK_ERROR_MS, CLOCK_ERROR_MS)
        keeping = self.loop.create_task(cluster.keep_up(), name="keep the brokers up")
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
        for host in cluster.hosts:
            await host.up.wait()
        takeovers = self.loop.create_task(self._watch_takeovers(), name="watch takeovers")
        await cluster.in_broker(lambda broker: broker.controllers.create_topic(TOPIC, shape.segments))
        for subscription in self.readers.subscriptions:
            await cluster.with_controller(TOPIC, partial(_subscribe, subscription))
        counts = {STREAM: shape.consumers, QUEUE: shape.queue_consumers, CHECKPOINT: shape.checkpoints}
        for kind, wanted in counts.items():
            for number in range(wanted):
                self._start_consumer(kind, f"{kind}-{number}")
        for number in range(shape.producers):
            self._producing.append(self.loop.create_task(self._produce(f"producer-{number}")))
        cluster.deaths = list(shape.deaths)
        for setting in fields(StoreTrouble):
            setattr(cluster.store_trouble, setting.name, getattr(shape.store_trouble, setting.name))
        await asyncio.gather(
            self._operations(), self._faults(), self._late_subscriptions(), self._seeks(), self._churn()
        )
        cluster.store_trouble.heal()
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
        for platter in cluster.platters.values():
            self.counts.update(platter.outcomes)
        takeovers.cancel()
        await cluster.stop()
        keeping.cancel()

    def _config(self) -> BrokerConfig:
        rng = self.rng
        return BrokerConfig(
            workers=self.shape.workers,
            lease_s=self.shape.lease_s,
            segment_retention_s=self.shape.retention_s,
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
        latency_s = self.rng.choice(((0.0001, 0.001), (0.001, 0.02), (0.0, 0.1)))
        for link in self.cluster.links(process):
            link.latency_s = latency_s
            link.pieces = self.rng.choice((0.0, 0.2))
        return process

    # Load.

    async def _produce(self, name: str) -> None:
        """Send everything, in so many lives as the shape says; later ones repeat some that was confirmed."""
        sent: list[Sent] = []
        for life in range(self.shape.sender_deaths + 1):
            process = self._process(name if not life else f"{name}.{life}")
            doubtful = next((n for n, s in enumerate(sent) if s.outcome is not Outcome.OK), len(sent))
            first = self.rng.randrange(max(doubtful - 10, 0), doubtful + 1)
            sending = process.spawn(self._send(process, name, sent, first))
            dying = life < self.shape.sender_deaths
            await asyncio.wait([sending], timeout=self.rng.uniform(0.0, self.shape.busy_s) if dying else None)
            if sending.done():
                sending.result()
                return
            process.kill(machine=self.rng.random() < 0.3)
            self.counts["sender killed"] += 1

    async def _send(self, process: SimProcess, name: str, sent: list[Sent], first: int) -> None:
        """Be a sender from a number on; whoever dies sometimes has to number its messages by itself."""
        shape, rng = self.shape, self.loop.random(process.name)
        async with self.cluster.client(process) as client:
            producer: AsyncProducer[bytes] = await persist(
                lambda: client.create_producer(str(TOPIC), name=name, send_timeout=0, batching=shape.batching)
            )
            room = asyncio.Semaphore(shape.in_flight_max)
            async with asyncio.TaskGroup() as outcomes:
                for number in range(first, shape.messages):
                    await room.acquire()
                    if number == len(sent):
                        sent.append(self.cluster.history.send(name, f"key-{rng.randrange(shape.keys)}"))
                        self._aim(sent[number])
                    message = sent[number]
                    future = await producer.enqueue(
                        message.uid.encode(),
                        key=message.key,
                        sequence_id=number if shape.sender_deaths else None,
                    )
                    outcomes.create_task(self._outcome(message, future, room))
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
        async with asyncio.TaskGroup() as askers:
            for _ in range(self.shape.askers):
                askers.create_task(self._ask_for_changes())

    async def _ask_for_changes(self) -> None:
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

    async def _operate(self, kind: str, controller: Controller) -> None:
        assert self.witness.layout is not None
        active = self.witness.layout.active
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

    async def _late_subscriptions(self) -> None:
        for number in range(self.shape.late_subscriptions):
            await asyncio.sleep(self.rng.uniform(0, self.shape.busy_s / self.shape.late_subscriptions))
            name = f"late-{number}"
            self._attempted[name] = None
            if await self._ask(partial(_make, name, self.rng.choice(KINDS), self.rng.choice(STARTS))):
                self.counts["late subscription made"] += 1
                self._late[name] = self.witness.layout.epoch if self.witness.layout else 0
            if self.rng.random() < 0.3:
                await self._ask(partial(_skip if self.rng.random() < 0.5 else _rewind, name))
            if self.rng.random() < 0.3:
                self._late.pop(name, None)
                if await self._ask(partial(_unmake, name)):
                    self.counts["late subscription deleted"] += 1
                    self._attempted.pop(name)

    async def _watch_takeovers(self) -> None:
        """A store is served again soon after its owner's lease is over, where nothing else is in the way."""
        shape, cluster = self.shape, self.cluster
        if shape.workers == 1 or shape.slow_disk or shape.stalls or shape.disk_errors:
            return
        if shape.store_trouble != StoreTrouble():
            return
        served_at = dict.fromkeys(cluster.platters, self.loop.time())
        started_at: dict[SimProcess, float] = {}
        while True:
            now = self.loop.time()
            running = [
                host for host in cluster.running if host.process and host.process.state is State.RUNNING
            ]
            for host in running:
                assert host.process is not None
                started_at.setdefault(host.process, now)
            # A broker that has just started leaves the stores of the others to them for one lease.
            since = max((started_at[h.process] for h in running if h.process), default=now)
            for store in served_at:
                if not running or any(h.broker and store in h.broker.stores.opened for h in running):
                    served_at[store] = now
                elif now - max(since, served_at[store]) > shape.lease_s + TAKEOVER_S:
                    self.found.append(
                        f"store {store} has no owner since {served_at[store]:.3f}, now {now:.3f}"
                    )
                    return
            await asyncio.sleep(0.1)

    async def _churn(self) -> None:
        """Make and delete a topic, time and again; an attempt that is interrupted may have done either."""
        for _ in range(self.shape.churn):
            await asyncio.sleep(self.rng.uniform(0, self.shape.busy_s / self.shape.churn))
            segments = self.rng.randrange(1, 4)
            await self._in_broker(partial(_create_other, segments))
            await self._in_broker(_change_other)
            await self._in_broker(_delete_other)
            self.counts["topic deleted"] += await self.cluster.record(OTHER) is None

    async def _in_broker(self, work: Callable[[Broker], Awaitable[None]]) -> None:
        try:
            await self.cluster.in_broker(work)
        except OVERTAKEN:
            self.counts["topic change overtaken"] += 1
        except AnabranchError as error:
            if not error.retryable:
                raise

    async def _seeks(self) -> None:
        for _ in range(self.shape.seeks):
            await asyncio.sleep(self.rng.uniform(0, self.shape.busy_s / self.shape.seeks))
            self.cluster.history.rewind(STREAM)
            self.witness.rewind(STREAM)
            if await self._ask(partial(_rewind, STREAM)):
                self.counts["stream sent back"] += 1
            # One that was not answered is carried out all the same, and so are acknowledgements on their way.
            await asyncio.sleep(REWIND_S)
            self.witness.rewind(STREAM)
            self.cluster.history.rewound.discard(STREAM)

    async def _ask(self, work: Callable[[Controller], Awaitable[bool]]) -> bool:
        """Ask the leader for something; whether it was done for sure."""
        try:
            return bool(await self.cluster.with_controller(TOPIC, work))
        except AnabranchError as error:
            if not error.retryable:
                raise
            return False

    async def _faults(self) -> None:
        shape = self.shape
        planned: list[Callable[[], None]] = [self._kill_broker] * shape.kills
        planned += [self._hurt_a_link] * shape.link_faults
        planned += [self._kill_a_consumer] * shape.consumer_deaths
        planned += [self._pause_a_consumer] * shape.consumer_pauses
        planned += [self._let_a_consumer_leave] * shape.consumer_leaves
        planned += [self._pause_broker] * shape.pauses
        planned += [self._stop_broker] * shape.stops
        planned += [self._stall_store] * shape.stalls
        planned += [self._lapse] * shape.lapses
        planned += [self._jump_a_clock] * shape.clock_jumps
        planned += [self._fail_a_disk] * shape.disk_errors
        if shape.slow_disk:
            for platter in self.cluster.platters.values():
                platter.sync_latency_s = (0.001, 0.3)
        times = sorted(self.rng.uniform(0, shape.busy_s) for _ in planned)
        self.rng.shuffle(planned)
        for time, fault in zip(times, planned, strict=True):
            await asyncio.sleep(max(0.0, time - self.loop.time()))
            fault()
        await asyncio.sleep(max(0.0, shape.busy_s - self.loop.time()))
        for platter in self.cluster.platters.values():
            platter.sync_latency_s = Platter.sync_latency_s
            platter.faults.clear()

    def _a_host(self) -> Host:
        return self.rng.choice(self.cluster.hosts)

    def _kill_broker(self) -> None:
        if self.rng.random() < (0.5 if self.shape.workers == 1 else 0.2):
            self.cluster.lose_machine()
        else:
            self.cluster.kill_broker(self._a_host())

    def _pause_broker(self) -> None:
        self.cluster.pause_broker(self._a_host(), self.rng.uniform(0.1, 4.0) * self.shape.lease_s)

    def _stop_broker(self) -> None:
        self.loop.create_task(self.cluster.stop_broker(self._a_host()))

    def _stall_store(self) -> None:
        life = self._a_host().life
        if life is not None:
            self.counts["metadata stalled"] += 1
            usual, life.store.latency_s = life.store.latency_s, (0.0, 2 * self.shape.lease_s)
            self.loop.call_later(self.rng.uniform(0.1, 5.0), setattr, life.store, "latency_s", usual)

    def _lapse(self) -> None:
        life = self._a_host().life
        if life is not None and life.process.alive:
            self.counts["lease lost"] += 1
            life.store.lapse()

    def _jump_a_clock(self) -> None:
        life = self._a_host().life
        if life is not None:
            self.counts["clock jumped"] += 1
            life.clock.jump(self.rng.randint(-CLOCK_ERROR_MS, CLOCK_ERROR_MS))

    def _fail_a_disk(self) -> None:
        platter = self.rng.choice(list(self.cluster.platters.values()))
        self.counts["disk error"] += 1
        platter.fail_next(self.rng.choice(("append", "sync")))

    def _pause_a_consumer(self) -> None:
        if self._consumers:
            _, process = self._consumers[self.rng.choice(sorted(self._consumers))]
            self.counts["consumer paused"] += 1
            process.pause()
            self.loop.call_later(self.rng.uniform(0.1, 8.0), process.resume)

    def _hurt_a_link(self) -> None:
        network = self.cluster.network
        link = self.rng.choice(self.cluster.links(self._one_end()))
        kind = self.rng.choice(("reset", "cut", "hold", "swallow"))
        self.counts[f"link {kind}"] += 1
        if kind == "reset":
            network.reset(link)
        elif kind == "cut":
            network.cut(link)
        else:
            network.set_mode(link, Mode.HELD if kind == "hold" else Mode.BLACK_HOLE)
            self.loop.call_later(self.rng.uniform(0.01, 8.0), network.set_mode, link, Mode.OPEN)

    def _one_end(self) -> SimProcess:
        """Of a link that is to be hurt: a client, or one of several brokers."""
        brokers = [host.process for host in self.cluster.running if host.process is not None]
        if len(self.cluster.hosts) > 1 and brokers and self.rng.random() < 0.3:
            return self.rng.choice(brokers)
        return self.rng.choice(self._clients)

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

    def _let_a_consumer_leave(self) -> None:
        if self._consumers:
            name = self.rng.choice(sorted(self._consumers))
            kind, process = self._consumers.pop(name)
            self._heirs += 1
            self.loop.create_task(self._leave(name, kind, process))

    async def _leave(self, name: str, kind: str, process: SimProcess) -> None:
        """Close in good order; another comes, under the same name or not, maybe before that is done."""
        self.readers.leaving.add(process)
        leaving = self._consuming[name]
        if kind == CHECKPOINT or self.rng.random() < 0.7:
            await asyncio.wait((leaving,), timeout=HEAL_S)
        else:
            name = f"{name}!"
        await asyncio.sleep(self.rng.uniform(0.0, 0.5))
        self.counts["consumer left"] += leaving.done()
        self._start_heir(kind, name)

    def _start_heir(self, kind: str, name: str) -> None:
        self._heirs -= 1
        self._start_consumer(kind, name)

    # The end.

    async def _settled(self) -> bool:
        """Wait until every message is stored and received; False when nothing moves for too long."""
        deadline, left = self.loop.time() + HEAL_S, -1
        while self.loop.time() < deadline:
            if all(task.done() for task in self._producing) and not self._missing() and not self._heirs:
                for task in self._producing:
                    task.result()
                return True
            before, left = left, len(self.cluster.history.sent) + len(self._missing())
            if left != before:
                deadline = self.loop.time() + HEAL_S
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
                self.found += self._absent(layout.segments[id_], log.cursors)

    def _absent(self, segment: Segment, cursors: Container[str]) -> list[str]:
        due = [name for name, epoch in self._late.items() if segment.active or segment.created_epoch > epoch]
        absent = [name for name in [*self.readers.subscriptions, *due] if name not in cursors]
        return [f"segment {segment.id} lacks the subscription {name}" for name in absent]

    async def _look_over(self) -> list[str]:
        record = await self.cluster.record(TOPIC)
        assert record is not None
        wrong = [f"a {record.intent.kind} is still under way"] if record.intent is not None else []
        wrong += [f"{item.name} is still garbage" for item in record.garbage]
        layout = layout_of(record)
        expected = {str(TOPIC.segment_name(s.range, s.id)): s for s in layout.segments.values()}
        other = await self._look_at_other(wrong)
        for host in self.cluster.hosts:
            stores = None if host.broker is None else host.broker.stores
            for name in stores.names() if stores is not None else ():
                if name not in expected and name not in other:
                    wrong.append(f"log {name} belongs to no segment")
        for name, segment in expected.items():
            wrong += self._look_at(segment, self.cluster.log_of(name))
        known = {*self.readers.kinds, *self._late, *self._attempted}
        for sub, found in self.witness.subscriptions.items():
            if found.unfinished is not None:
                wrong.append(f"the {found.unfinished.kind} of subscription {sub} is still under way")
            if sub not in known:
                wrong.append(f"subscription {sub} was deleted and is there")
        return wrong + behind(self.tap.open_watches(), {str(TOPIC): record.epoch}) + self._leaders()

    async def _look_at_other(self, wrong: list[str]) -> frozenset[str]:
        """The logs of the topic that comes and goes."""
        record = await self.cluster.record(OTHER)
        if record is None:
            return frozenset()
        if record.deleted or record.intent is not None or record.garbage:
            wrong.append(f"{OTHER} is still being changed")
        return frozenset(str(OTHER.segment_name(s.range, s.id)) for s in layout_of(record).segments.values())

    def _look_at(self, segment: Segment, log: SegmentLog | None) -> list[str]:
        if log is None:
            return [f"segment {segment.id} has no log"]
        if log.sealed == segment.active:
            return [f"segment {segment.id} is {segment.state}, its log says otherwise"]
        known = {*self.readers.subscriptions, *self._late, *self._attempted}
        orphans = [name for name in log.cursors if name not in known]
        return [f"segment {segment.id} has a cursor {name} of nobody" for name in orphans] + self._absent(
            segment, log.cursors
        )

    def _leaders(self) -> list[str]:
        """Exactly one controller acts (V1)."""
        leading = [
            host.name
            for host in self.cluster.hosts
            if host.broker is not None and TOPIC in host.broker.controllers.layouts()
        ]
        return [] if len(leading) == 1 else [f"the topic is led by {leading or 'nobody'}"]

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
        self.cluster.lose_machine()
        for host in self.cluster.hosts:
            await host.up.wait()
        self._consumers.clear()
        for kind in self.readers.kinds:
            self._start_consumer(kind, f"{kind} newcomer")
        await asyncio.sleep(3.0)
        await self._settled()
        await self._end_consumers()


async def _create_other(segments: int, broker: Broker) -> None:
    await broker.controllers.create_topic(OTHER, segments)


async def _change_other(broker: Broker) -> None:
    controller = await broker.controllers.controller(OTHER)
    await controller.ensure_subscription("s", "STREAM", "earliest")
    await controller.split(0)


async def _delete_other(broker: Broker) -> None:
    await broker.controllers.delete_topic(OTHER, True)


async def _make(name: str, kind: SubscriptionKind, start: StartAt, controller: Controller) -> bool:
    try:
        await controller.ensure_subscription(name, kind, start)
    except ConflictError:
        return False
    return True


async def _rewind(name: str, controller: Controller) -> bool:
    try:
        await controller.seek(name, 0)
    except SubscriptionNotFoundError:
        return False
    return True


async def _skip(name: str, controller: Controller) -> bool:
    try:
        await controller.skip_all(name)
    except SubscriptionNotFoundError:
        return False
    return True


async def _unmake(name: str, controller: Controller) -> bool:
    try:
        await controller.delete_subscription(name)
    except SubscriptionNotFoundError:
        return False
    return True


async def _subscribe(subscription: str, controller: Controller) -> None:
    await controller.ensure_subscription(
        subscription, "QUEUE" if subscription == QUEUE else "STREAM", "earliest"
    )


def key_in(part: HashRange) -> str:
    """A key whose hash falls into a range."""
    return next(key for key in map(str, count()) if segment_hash(key_hash(key)) in part)
