"""One run of one seed with control processes over a simulated Pulsar: changes under load, faults, judgement.

The seed draws the load and the faults: control processes die, pause and lose their sessions, Pulsar's brokers
die, links break, admin calls fail or arrive late, and the metadata store fails. After the faults everything
must recover; then the judges check the history and the stored state.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

from anabranch.config.broker import BrokerConfig
from anabranch.control.topic_marks import marks_of
from anabranch.controller.ports.leader import TopicLeader
from anabranch.errors import AnabranchError
from anabranch.model.policy import AutoScalePolicy
from anabranch.model.pulsar_names import pulsar_topic
from simulation.cluster.admin import SimAdmin
from simulation.cluster.calls import AdminTrouble
from simulation.cluster.control_cluster import ControlCluster
from simulation.judges.control_judges import STRANGER, ControlAudit
from simulation.runs.clients import Clients, Senders
from simulation.runs.cluster_run import subscribe
from simulation.runs.readers import TOPIC, Readers
from simulation.runs.requests import Requests
from simulation.runs.shape import Shape, draw
from simulation.world.faults import StoreTrouble
from simulation.world.loop import SimLoop, run_to_end

PAUSES_S = (0.1, 12.0)
"""Pauses of control processes; after long ones another process leads, and its quiet period is over."""
STEPS = ("subscription.delete.recorded", "subscription.create.recorded", "split.sealed", "merge.sealed")
"""A leader may be paused at one of them."""
STEP_PAUSES = (0, 0, 1, 2)

HEAL_S = 120.0
"""Everything must make progress within this time after the last fault."""

ADMIN_TROUBLES = (AdminTrouble(), AdminTrouble(0.05), AdminTrouble(0.02, 0.1, 0.5, 0.2, 0.02))
STUCK_CHANCES = (0.0, 0.0, 0.5)
"""How probable it is that a terminate leaves appends pending."""
MOVE_CHANCES = (0.0, 0.9, 0.9)
"""How probable it is that a topic moves to another broker right before it is terminated."""
INTERRUPT_CHANCES = (0.0, 0.0, 0.5)
"""How probable it is that the creation of a subscription fails half-way."""
REUSES = (0, 0, 2, 3)
"""How often the name of a subscription is used again."""


class ControlRun:
    """One run of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = SimLoop(f"{seed} control")
        self.rng = self.loop.random("scenario")
        self.shape = draw_control(self.loop)
        self.counts: Counter[str] = Counter()
        self.found: list[str] = []
        self.cluster: ControlCluster
        self.readers: Readers
        self.senders: Senders

    def run(self) -> list[str]:
        """Run to the end; return every violation in words."""
        return run_to_end(self.loop, self._run(), self.found, self.shape.busy_s + 10 * HEAL_S)

    async def _run(self) -> None:
        brokers = self.loop.random("pulsar brokers").choice((1, 2, 2))
        self.cluster = cluster = ControlCluster(self.loop, config=self._config(), pulsar_brokers=brokers)
        cluster.counts = self.counts
        self.readers = Readers(cluster, self.shape, self.counts)
        clients = Clients(cluster, self.readers, self.rng)
        self.senders = Senders(clients, self.shape, self.found)
        requests = Requests(cluster, self.shape, self.loop.random("requests"), self.counts, None)
        audit = ControlAudit(cluster, self.readers, requests, self.found)
        requests.witness = audit.watch(self.counts, cluster.config.consumer_grace_s)
        # A leader repeats a seek until all topics have moved, however long Pulsar does not answer.
        cluster.sought = requests.witness.rewind
        keeping = self.loop.create_task(cluster.keep_up(), name="keep the processes up")
        for host in (*cluster.pulsars, *cluster.hosts):
            await host.up.wait()
        admin = SimAdmin(cluster, self.loop.random("stranger"))
        await admin.create(pulsar_topic(STRANGER), marks_of(STRANGER, "theirs"))
        await cluster.in_broker(lambda broker: broker.controllers.create_topic(TOPIC, self.shape.segments))
        for subscription in self.readers.subscriptions:
            await cluster.with_controller(TOPIC, partial(subscribe, subscription))
        for kind, wanted in self.readers.wanted.items():
            for number in range(wanted):
                clients.start_consumer(kind, f"{kind}-{number}")
        self.senders.start()
        self._begin_trouble()
        await asyncio.gather(
            *(self._change_layouts() for _ in range(self.shape.askers)),
            self._trouble(clients),
            requests.change_subscriptions(),
            requests.seek(),
            requests.churn(),
            requests.reuse_name(self.loop.random("reuse").choice(REUSES)),
        )
        await self._end_trouble()
        if await self._settled(clients):
            await audit.run()
            await clients.end_consumers(self.found)
        audit.judge()
        self.counts["topic ended with an empty ledger"] += cluster.foreign.ended_empty
        keeping.cancel()

    def _begin_trouble(self) -> None:
        cluster, rng = self.cluster, self.loop.random("admin trouble")
        cluster.admin_trouble = rng.choice(ADMIN_TROUBLES)
        cluster.foreign.stuck_chance = rng.choice(STUCK_CHANCES)
        cluster.foreign.move_chance = rng.choice(MOVE_CHANCES)
        rng = self.loop.random("half-made subscriptions")
        cluster.foreign.interrupt_chance = rng.choice(INTERRUPT_CHANCES)
        rng = self.loop.random("pauses at steps")
        for step in rng.sample(STEPS, rng.choice(STEP_PAUSES)):
            cluster.pauses_at[step] = rng.uniform(*PAUSES_S)
        for setting in fields(StoreTrouble):
            setattr(cluster.store_trouble, setting.name, getattr(self.shape.store_trouble, setting.name))
        self.counts["metadata in trouble"] += self.shape.store_trouble != StoreTrouble()

    async def _end_trouble(self) -> None:
        """End all faults, and wait for their last consequences: former leaders wake up, late calls arrive."""
        cluster = self.cluster
        cluster.admin_trouble = AdminTrouble()
        cluster.pauses_at.clear()
        cluster.foreign.stuck_chance = cluster.foreign.interrupt_chance = 0.0
        cluster.store_trouble.heal()
        cluster.network.heal()
        await asyncio.sleep(max(0.0, cluster.trouble_until_s - self.loop.time()))
        self.counts["appends stayed pending"] += cluster.foreign.stuck

    def _config(self) -> BrokerConfig:
        return BrokerConfig(
            workers=self.shape.workers,
            lease_s=self.shape.lease_s,
            auto_scale=AutoScalePolicy(enabled=False),
            auto_scale_interval_s=0.2,
            consumer_grace_s=self.rng.choice((0.5, 5.0)),
            keep_alive_s=self.rng.choice((2.0, 10.0)),
        )

    async def _change_layouts(self) -> None:
        for _ in range(self.shape.operations):
            await asyncio.sleep(self.rng.uniform(0.0, self.shape.busy_s / self.shape.operations))
            try:
                await self.cluster.with_controller(TOPIC, self._split_or_merge)
            except (AnabranchError, TimeoutError):
                self.counts["control operation interrupted"] += 1

    async def _split_or_merge(self, leader: TopicLeader) -> None:
        record = await self.cluster.record(TOPIC)
        assert record is not None
        active = sorted(
            (one.hash_range.start, id_) for id_, one in record.segments.items() if one.state == "ACTIVE"
        )
        if len(active) > 1 and self.rng.random() < 0.4:
            at = self.rng.randrange(len(active) - 1)
            await leader.merge([active[at][1], active[at + 1][1]])
        else:
            await leader.split(self.rng.choice(active)[1])
        self.counts["control operation done"] += 1

    async def _trouble(self, clients: Clients) -> None:
        shape = self.shape
        faults: list[Callable[[], None]] = [self._kill_control] * shape.kills
        faults += [self._pause_control] * shape.pauses + [self._end_session] * shape.lapses
        faults += [self._kill_pulsar] * self.rng.choice((0, 0, 1, 2))
        faults += [self._reset_links] * self.shape.link_faults
        faults += [clients.kill_consumer] * self.shape.consumer_deaths
        self.rng.shuffle(faults)
        for fault in faults:
            await asyncio.sleep(self.rng.uniform(0.0, self.shape.busy_s / len(faults)))
            fault()

    def _kill_control(self) -> None:
        self.counts["control process killed"] += 1
        self.cluster.kill_broker(self.rng.choice(self.cluster.hosts))

    def _pause_control(self) -> None:
        self.counts["control process paused"] += 1
        self.cluster.pause_broker(self.rng.choice(self.cluster.hosts), self.rng.uniform(*PAUSES_S))

    def _kill_pulsar(self) -> None:
        self.counts["pulsar killed"] += 1
        self.cluster.kill_pulsar(self.rng.choice(self.cluster.pulsars))

    def _end_session(self) -> None:
        host = self.rng.choice(self.cluster.hosts)
        if host.life is not None and host.process is not None:
            self.counts["session ended"] += 1
            host.life.store.lapse()

    def _reset_links(self) -> None:
        links = self.cluster.network.links()
        if links:
            self.cluster.network.reset(self.rng.choice(links))

    async def _settled(self, clients: Clients) -> bool:
        """Wait until every message is stored and received; False when there is no progress for too long."""
        deadline, left = self.loop.time() + HEAL_S, -1
        while self.loop.time() < deadline:
            missing = sum(len(uids) for uids in self.readers.missing.values())
            if not self.senders.waiting and not missing and not clients.heirs:
                return True
            if missing + len(self.cluster.history.sent) != left:
                left, deadline = missing + len(self.cluster.history.sent), self.loop.time() + HEAL_S
            await asyncio.sleep(0.1)
        named = [f"{kind}: {uid}" for kind, uids in self.readers.missing.items() for uid in uids]
        self.found.append(
            f"not healed after {HEAL_S:g} s: {self.senders.waiting} producers wait, {len(named)} messages "
            f"not received ({', '.join(named[:3])})"
        )
        return False


def draw_control(loop: SimLoop) -> Shape:
    """A shape without the faults and clients that need logs of our own."""
    drawn = draw(loop.random("shape"), None)
    rng = loop.random("control shape")
    return replace(
        drawn,
        workers=rng.choice((1, 2, 3)),
        lease_s=rng.choice((1.0, 3.0)),
        group_members=0,
        stuck=0.0,
        sender_deaths=0,
        revocations=0,
        guarded=False,
        kills=rng.choice((0, 1, 2)),
        pauses=rng.choice((0, 0, 1)),
        churn=rng.choice((0, 2, 4)),
        operations=rng.randrange(1, 6),
    )
