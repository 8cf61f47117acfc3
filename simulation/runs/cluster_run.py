"""One run of one seed: layout changes under load with crashes, then healing, then judgement.

The seed draws everything: the numbers of segments, keys, producers and consumers, the faults and their times,
and how small the limits are. After the faults the cluster must recover within bounded virtual time; then the
judges check the history and the stored state.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import fields
from functools import partial
from itertools import count

from anabranch.client.produce.producer import AsyncProducer
from anabranch.config.broker import BrokerConfig
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import AnabranchError
from anabranch.metadata.layouts import layout_of
from anabranch.model.hashing import key_hash, segment_hash
from anabranch.model.policy import AutoScalePolicy
from anabranch.model.ranges import HashRange
from simulation.cluster.cluster import Cluster
from simulation.cluster.guard import GUARDED
from simulation.judges.audit import Audit
from simulation.judges.checkers import SendResult
from simulation.runs.clients import Clients, Senders
from simulation.runs.compactions import Compactions
from simulation.runs.liars import Liars
from simulation.runs.reader_kinds import QUEUE
from simulation.runs.readers import TOPIC, Readers
from simulation.runs.requests import Requests
from simulation.runs.roles import Roles, guard_of
from simulation.runs.shape import SENDER, draw, draw_config
from simulation.runs.trouble import CLOCK_ERROR_MS, Trouble
from simulation.world.faults import StoreTrouble
from simulation.world.loop import SimLoop, run_to_end

HEAL_S = 60.0
"""The cluster must make progress within this time after the last fault."""


class ClusterRun:
    """One run of one seed."""

    def __init__(self, seed: int, step: str | None = None) -> None:
        self.seed = seed
        self.step = step
        self.loop = SimLoop(f"{seed} {step}")
        self.rng = self.loop.random("scenario")
        self.shape = draw(self.rng, step)
        self.counts: Counter[str] = Counter()
        self.found: list[str] = []
        self.cluster: Cluster
        self.readers: Readers
        self.clients: Clients
        self.senders: Senders
        self.compactions: Compactions

    def run(self) -> list[str]:
        """Run to the end; return every violation in words."""
        return run_to_end(self.loop, self._run(), self.found, self.shape.busy_s + 10 * HEAL_S)

    async def _run(self) -> None:
        shape = self.shape
        config = self._config()
        self.cluster = cluster = Cluster(self.loop, config=config, limits=shape.limits)
        cluster.counts = self.counts
        cluster.guard = guard_of(self.loop, shape)
        self.readers = Readers(cluster, shape, self.counts)
        self.clients = Clients(cluster, self.readers, self.rng)
        self.senders = Senders(self.clients, shape, self.found)
        requests = Requests(cluster, shape, self.rng, self.counts, self.step)
        audit = Audit(cluster, self.readers, requests, self.found)
        if shape.clock_jumps:
            cluster.clock_offsets_ms = (-CLOCK_ERROR_MS, CLOCK_ERROR_MS)
        keeping = self.loop.create_task(cluster.keep_up(), name="keep the brokers up")
        # A role that loses its right loses its place at once.
        requests.witness = audit.watch(self.counts, 0.0 if shape.revocations else config.consumer_grace_s)
        for host in cluster.hosts:
            await host.up.wait()
        takeovers = self.loop.create_task(audit.watch_takeovers(shape), name="watch takeovers")
        roles = Roles(self.clients, shape, self.found)
        self.compactions = Compactions(self.clients, shape, self.found)
        await roles.start()
        await self._start_load()
        await asyncio.gather(
            requests.change_layouts(),
            Trouble(self.clients, shape).run(),
            Liars(self.clients, shape, self.found).run(),
            roles.run(),
            requests.change_subscriptions(),
            requests.seek(),
            requests.churn(),
            self.compactions.run(),
        )
        await self._heal(audit)
        audit.judge()
        for platter in cluster.platters.values():
            self.counts.update(platter.outcomes)
        takeovers.cancel()
        await cluster.stop()
        keeping.cancel()

    async def _heal(self, audit: Audit) -> None:
        """End all faults; then everything must be in order again."""
        self.cluster.store_trouble.heal()
        self.cluster.deaths.clear()
        self.cluster.network.heal()
        if await self._settled():
            await self.compactions.finish()
            await self._probe()
            await audit.run()
            await self.clients.end_consumers(self.found)
            await self._look_again()
            await self.compactions.judge()

    async def _start_load(self) -> None:
        shape, cluster = self.shape, self.cluster
        await cluster.in_broker(lambda broker: broker.controllers.create_topic(TOPIC, shape.segments))
        for subscription in self.readers.subscriptions:
            await cluster.with_controller(TOPIC, partial(subscribe, subscription))
        for kind, wanted in self.readers.wanted.items():
            for number in range(wanted):
                self.clients.start_consumer(kind, f"{kind}-{number}")
        self.senders.start()
        cluster.deaths = list(shape.deaths)
        for setting in fields(StoreTrouble):
            setattr(cluster.store_trouble, setting.name, getattr(shape.store_trouble, setting.name))

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
            log_idle_s=self.loop.random("idle logs").choice((0.0, 1.0)),
            consumer_grace_s=rng.choice((0.5, 5.0)),
            dispatch_max_entries=rng.choice((1, 7, 100)),
            publish_pending_bytes_max=64 * 1024,
            bucket_budget=rng.choice((1, 4, 8)),
            damaged_entries="skip",
            disk_reserve_bytes=1000,
            **draw_config(self.loop.random),
            **(GUARDED if self.shape.guarded else {}),
        )

    def _policy(self) -> AutoScalePolicy:
        """Return a policy that is off, or that acts within a second or two."""
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

    async def _settled(self) -> bool:
        """Wait until every message is stored and received; False when there is no progress for too long."""
        deadline, left = self.loop.time() + HEAL_S, -1
        while self.loop.time() < deadline:
            if not self.senders.waiting and not self._missing() and not self.clients.heirs:
                return True
            before, left = left, len(self.cluster.history.sent) + len(self._missing())
            if left != before:
                deadline = self.loop.time() + HEAL_S
            await asyncio.sleep(0.1)
        missing = self._missing()
        unknown = [s.uid for s in self.cluster.history.sent.values() if s.outcome is SendResult.UNKNOWN]
        self.found.append(
            f"not healed after {HEAL_S:g} s: {self.senders.waiting} producers wait, {len(unknown)} messages "
            f"are not confirmed ({', '.join(unknown[:3])}), {len(missing)} not received "
            f"({', '.join(missing[:3])})"
        )
        return False

    def _missing(self) -> list[str]:
        return [f"{kind}: {uid}" for kind, uids in self.readers.missing.items() for uid in uids]

    async def _probe(self) -> None:
        """Check that every hash is writable without intervention."""
        record = await self.cluster.record(TOPIC)
        assert record is not None
        process = self.clients.process("prober")

        async def probe() -> None:
            async with self.cluster.client(process, SENDER) as client:
                producer: AsyncProducer[bytes] = await client.create_producer(str(TOPIC), name="prober")
                for segment in layout_of(record).active:
                    sent = self.cluster.history.send("prober", key_in(segment.range))
                    await asyncio.wait_for(producer.send(sent.uid.encode(), key=sent.key), 10)
                    sent.outcome = SendResult.OK
                    self.readers.confirmed(sent.uid)

        try:
            await process.spawn(probe())
        except (AnabranchError, TimeoutError) as error:
            self.found.append(f"some hash is not writable: {type(error).__name__}: {error}")
        await self._settled()

    async def _look_again(self) -> None:
        """Crash once more: new consumers receive no message whose acknowledgement was confirmed."""
        self.cluster.lose_machine()
        for host in self.cluster.hosts:
            await host.up.wait()
        for kind in self.readers.kinds:
            self.clients.start_consumer(kind, f"{kind} newcomer")
        await asyncio.sleep(3.0)
        await self._settled()
        await self.clients.end_consumers(self.found)


async def subscribe(subscription: str, controller: TopicLeader) -> None:
    """Create the subscription of a kind of readers."""
    await controller.ensure_subscription(
        subscription, "QUEUE" if subscription == QUEUE else "STREAM", "earliest"
    )


def key_in(part: HashRange) -> str:
    """Return a key whose hash is in a range."""
    return next(key for key in map(str, count()) if segment_hash(key_hash(key)) in part)
