"""Layout changes under load with crashes, then healing, then judgement.

The seed draws everything: how many segments, keys, producers and consumers there are, which faults happen and
when, and how small the limits are. After the faults everything is healed and the run must come to its end
within bounded virtual time; then the history is checked and the state is looked over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import fields
from functools import partial
from itertools import count
from typing import TypeVar

from anabranch.client.produce.producer import AsyncProducer
from anabranch.config import BrokerConfig
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import (
    AnabranchError,
)
from anabranch.metadata.topics import layout_of
from anabranch.model.hashing import key_hash, segment_hash
from anabranch.model.ids import MessageId
from anabranch.model.layout import Layout
from anabranch.model.policy import AutoScalePolicy
from anabranch.model.ranges import HashRange
from anabranch.model.routing import Router
from anabranch.testing.audit import Audit
from anabranch.testing.checkers import SendResult, Sent, violations
from anabranch.testing.cluster import Cluster, Host
from anabranch.testing.faults import StoreTrouble
from anabranch.testing.network import Mode
from anabranch.testing.readers import CHECKPOINT, QUEUE, STREAM, TOPIC, Readers, persist
from anabranch.testing.requests import Requests
from anabranch.testing.shape import FAILPOINTS, OPERATIONS, draw
from anabranch.testing.simdisk import Platter
from anabranch.testing.simloop import SimLoop, SimProcess, SimulationError
from anabranch.testing.wiretap import WireTap
from anabranch.testing.witness import Witness

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


CLOCK_ERROR_MS = 3_600_000
"""How wrong wall clocks are at most, at the start and after a jump."""

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
        asked = Requests(cluster, shape, self.rng, self.counts, self.step)
        audit = Audit(cluster, self.readers, asked, self.found)
        if shape.clock_jumps:
            cluster.clock_offsets_ms = (-CLOCK_ERROR_MS, CLOCK_ERROR_MS)
        keeping = self.loop.create_task(cluster.keep_up(), name="keep the brokers up")
        self.witness = asked.witness = witness = Witness(
            self.loop,
            cluster.history,
            self.counts,
            TOPIC,
            ordered=[STREAM],
            grace_s=config.consumer_grace_s,
            log_of=cluster.log_of,
            leads=lambda process: cluster.leads(process, TOPIC),
            committed=audit.look_at_children,
        )
        cluster.tree.seen = witness.changed
        cluster.network.tap = tap = WireTap(witness)
        audit.look_through(witness, tap)
        for host in cluster.hosts:
            await host.up.wait()
        takeovers = self.loop.create_task(audit.watch_takeovers(shape), name="watch takeovers")
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
            asked.change_layouts(), self._faults(), asked.change_subscriptions(), asked.seek(), asked.churn()
        )
        cluster.store_trouble.heal()
        cluster.deaths.clear()
        cluster.network.heal()
        if await self._settled():
            await self._probe()
            await audit.run()
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
            doubtful = next((n for n, s in enumerate(sent) if s.outcome is not SendResult.OK), len(sent))
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
        sent.outcome = SendResult.OK
        if id_.ledger >= 0:
            sent.place = (id_.segment, id_.ledger, id_.entry, id_.batch_index)
        self.readers.confirmed(sent.uid)

    def _start_consumer(self, kind: str, name: str) -> None:
        process = self._process(name)
        self._consumers[name] = kind, process
        rng = self.loop.random(f"{name} {len(self._clients)}")
        self._consuming[name] = process.spawn(self.readers.read(kind, process, rng))

    # Layout changes and faults.

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
        unknown = [s.uid for s in self.cluster.history.sent.values() if s.outcome is SendResult.UNKNOWN]
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
                    sent.outcome = SendResult.OK
                    self.readers.confirmed(sent.uid)

        try:
            await process.spawn(probe())
        except (AnabranchError, TimeoutError) as error:
            self.found.append(f"some hash is not writable: {type(error).__name__}: {error}")
        await self._settled()

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


async def _subscribe(subscription: str, controller: TopicLeader) -> None:
    await controller.ensure_subscription(
        subscription, "QUEUE" if subscription == QUEUE else "STREAM", "earliest"
    )


def key_in(part: HashRange) -> str:
    """A key whose hash falls into a range."""
    return next(key for key in map(str, count()) if segment_hash(key_hash(key)) in part)
