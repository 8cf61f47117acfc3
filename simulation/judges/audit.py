"""Checks the stored state: while layouts change, and when the cluster has recovered.

Looks into brokers, logs and metadata from outside; must not change anything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container

from anabranch.ledger.storage import SegmentLog
from anabranch.metadata.layouts import layout_of
from anabranch.model.layout import Layout, Segment
from simulation.cluster.cluster import Cluster
from simulation.judges.checkers import violations
from simulation.judges.metadata_witness import WitnessSettings
from simulation.judges.wiretap import WireTap
from simulation.judges.witness import Witness, behind
from simulation.runs.compactions import COMPACTED
from simulation.runs.reader_kinds import CHECKPOINT, KEYED, QUEUE, STREAM
from simulation.runs.readers import TOPIC, Readers
from simulation.runs.requests import OTHER, Requests
from simulation.runs.shape import DiskFaults, Shape
from simulation.world.faults import StoreTrouble
from simulation.world.process import SimProcess, State

AUDITS_MAX = 40

TAKEOVER_S = 2.0
"""The longest time from the end of a lease until the next owner serves the store."""


class Audit:
    """The judges of one run; violations go to `found`, in words."""

    witness_kind: type[Witness] = Witness
    witness: Witness
    tap: WireTap

    def __init__(self, cluster: Cluster, readers: Readers, asked: Requests, found: list[str]) -> None:
        self.found = found
        self._cluster = cluster
        self._loop = cluster.loop
        self._readers = readers
        self._asked = asked

    def watch(self, counts: Counter[str], grace_s: float) -> Witness:
        """Judge changes and deliveries from now on; a lost consumer keeps its place for `grace_s`."""
        cluster = self._cluster
        settings = WitnessSettings(
            topic=TOPIC,
            ordered=frozenset([STREAM, KEYED]),
            grace_s=grace_s,
            log_of=cluster.log_of,
            leads=lambda process: cluster.leads(process, TOPIC),
            committed=self.look_at_children,
        )
        self.witness = self.witness_kind(self._loop, cluster.history, counts, settings)
        cluster.tree.seen = self.witness.changed
        cluster.network.tap = self.tap = WireTap(self.witness)
        return self.witness

    def judge(self) -> None:
        """Judge the whole history, after the last event."""
        self.witness.settle_doubts()
        kinds = self._readers.kinds
        self.found += violations(
            self._cluster.history,
            ordered=[kind for kind in kinds if kind != QUEUE],
            unordered=[kind for kind in kinds if kind == QUEUE],
            exact=[kind for kind in kinds if kind == CHECKPOINT],
        )

    async def run(self) -> None:
        """Check that no operation is unfinished, no garbage is left and no subscription is missing."""
        wrong = await self.look_over()
        for _ in range(AUDITS_MAX):
            if not wrong:
                return
            # Auto-scaling may have been in the middle of a change.
            await asyncio.sleep(0.5)
            wrong = await self.look_over()
        self.found += wrong

    def look_at_children(self, layout: Layout) -> None:
        """Check that new segments of a layout have every subscription when it becomes visible (L3).

        Consumers add a missing subscription when they attach, so a later check would find nothing.
        """
        before = self._cluster.history.layouts[:-1]
        if not before:
            return
        for id_ in sorted(layout.segments.keys() - before[-1].segments.keys()):
            log = self._cluster.log_of(str(TOPIC.segment_name(layout.segments[id_].range, id_)))
            if log is not None:
                self.found += self.absent(layout.segments[id_], log.cursors)

    def absent(self, segment: Segment, cursors: Container[str]) -> list[str]:
        late = self._asked.late.items()
        due = [name for name, epoch in late if segment.active or segment.created_epoch > epoch]
        absent = [name for name in [*self._readers.subscriptions, *due] if name not in cursors]
        return [f"segment {segment.id} lacks the subscription {name}" for name in absent]

    async def look_over(self) -> list[str]:
        record = await self._cluster.record(TOPIC)
        assert record is not None
        wrong = [f"a {record.intent.kind} is still under way"] if record.intent is not None else []
        wrong += [f"{item.name} is still garbage" for item in record.garbage]
        layout = layout_of(record)
        expected = {str(TOPIC.segment_name(s.range, s.id)): s for s in layout.segments.values()}
        other = await self._look_at_other(wrong)
        for host in self._cluster.hosts:
            stores = None if host.broker is None else host.broker.stores
            for name in stores.names() if stores is not None else ():
                if name not in expected and name not in other and name != str(COMPACTED):
                    wrong.append(f"log {name} belongs to no segment")
        for name, segment in expected.items():
            wrong += self.look_at(segment, self._cluster.log_of(name))
        known = {*self._readers.kinds, *self._asked.late, *self._asked.attempted}
        for sub, found in self.witness.subscriptions.items():
            if found.unfinished is not None:
                wrong.append(f"the {found.unfinished.kind} of subscription {sub} is still under way")
            if sub not in known:
                wrong.append(f"subscription {sub} was deleted and still exists")
        return wrong + behind(self.tap.open_watches(), {str(TOPIC): record.epoch}) + self._leaders()

    async def _look_at_other(self, wrong: list[str]) -> frozenset[str]:
        """Return the logs of the topic that is created and deleted again and again."""
        record = await self._cluster.record(OTHER)
        if record is None:
            return frozenset()
        if record.deleted or record.intent is not None or record.garbage:
            wrong.append(f"{OTHER} is still being changed")
        return frozenset(str(OTHER.segment_name(s.range, s.id)) for s in layout_of(record).segments.values())

    def look_at(self, segment: Segment, log: SegmentLog | None) -> list[str]:
        if log is None:
            return [f"segment {segment.id} has no log"]
        if log.sealed == segment.active:
            return [f"segment {segment.id} is {segment.state}, its log is not"]
        known = {*self._readers.subscriptions, *self._asked.late, *self._asked.attempted}
        orphans = [name for name in log.cursors if name not in known]
        wrong = [f"segment {segment.id} has a cursor {name} without a subscription" for name in orphans]
        return wrong + self.absent(segment, log.cursors)

    def _leaders(self) -> list[str]:
        """Exactly one broker leads the topic (V1)."""
        leading = [host.name for host in self._cluster.hosts if self._cluster.leads(host.process, TOPIC)]
        return [] if len(leading) == 1 else [f"the topic is led by {leading or 'no broker'}"]

    async def watch_takeovers(self, shape: Shape) -> None:
        """Check that a store is served soon after the lease of its owner ends, without other faults."""
        slow = shape.disk != DiskFaults() or shape.stalls or shape.store_trouble != StoreTrouble()
        if shape.workers == 1 or slow:
            return
        served_at = dict.fromkeys(self._cluster.platters, self._loop.time())
        started_at: dict[SimProcess, float] = {}
        while True:
            now = self._loop.time()
            lives = [host.life for host in self._cluster.running if host.life]
            lives = [life for life in lives if life.process.state is State.RUNNING]
            # A broker that has just started takes over no other store for one lease.
            since = max((started_at.setdefault(life.process, now) for life in lives), default=now)
            for store in served_at:
                if not lives or any(store in life.broker.stores.opened for life in lives):
                    served_at[store] = now
                elif now - max(since, served_at[store]) > shape.lease_s + TAKEOVER_S:
                    self.found.append(f"store {store} had no owner from {served_at[store]:.3f} to {now:.3f}")
                    return
            await asyncio.sleep(0.1)
