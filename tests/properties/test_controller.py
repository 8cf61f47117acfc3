"""Random lives of a topic: changes, faults and kills at any moment; after healing, all records agree."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from anabranch.controller.decide.registration_request import RegistrationRequest
from anabranch.controller.ports.leader import Membership
from anabranch.errors import AnabranchError, ConnectError
from anabranch.metadata.records import InitialPosition
from anabranch.model.layout import Layout
from anabranch.model.names import TopicName
from simulation.judges.layout_checks import check_step
from simulation.world.loop import SimLoop
from tests.harness.control import MANUAL, TOPIC, ControlPlane, DiedError

SUBSCRIPTIONS = ("s1", "s2", "q")
SEEDS = 120


class Life:
    """One random run; remembers confirmed changes and compares the controllers with them."""

    def __init__(self, plane: ControlPlane, rng: random.Random) -> None:
        self.plane = plane
        self.rng = rng
        self.registrations: list[Membership] = []
        self.confirmed: set[str] = set()
        self.seen: list[Layout] = []
        self.calm = False

    async def run(self) -> None:
        await self.plane.boot()
        await self.plane.call(self.plane.service.create_topic(TOPIC, self.rng.randint(1, 3)))
        self.plane.kill()
        for _ in range(self.rng.randint(5, 40)):
            if not self.plane.process.alive:
                await self.boot()
            with suppress(AnabranchError, DiedError):
                await asyncio.gather(*(self.step() for _ in range(self.rng.randint(1, 3))))
            await asyncio.sleep(self.rng.choice([0.0, 0.001, 0.01, 1.0]))
        await self.settle()

    async def boot(self) -> None:
        self.registrations.clear()
        while True:
            faults = {} if self.calm else self.rng.choice([{}, {"refuse": 0.1}, {"lose_reply": 0.1}])
            try:
                await self.plane.boot(**faults)  # type: ignore[arg-type]
                break
            except (DiedError, AnabranchError):
                self.plane.kill()
        self.plane.segments.fails = self.fails
        self.plane.service.watch_layout(TOPIC, self.watch())
        if not self.calm and self.rng.random() < 0.5:
            delay_s = self.rng.choice([0.002, 0.02, 0.2])
            self.plane.loop.call_later(self.rng.uniform(0, delay_s), self.plane.process.kill)

    def watch(self) -> Callable[[Layout | None], None]:
        last = -1

        def changed(layout: Layout | None) -> None:
            nonlocal last
            if layout is not None:
                assert layout.epoch > last, "epochs never go back"
                last = layout.epoch
                if not self.seen or layout.epoch > self.seen[-1].epoch:
                    self.seen.append(layout)

        return changed

    def fails(self, verb: str, name: TopicName) -> Exception | None:
        return ConnectError("owner is away") if not self.calm and self.rng.random() < 0.05 else None

    async def step(self) -> None:
        plane, rng = self.plane, self.rng
        controller = await plane.controller()
        layout = controller.layout
        sub = rng.choice(SUBSCRIPTIONS)
        kind = "QUEUE" if sub == "q" else "STREAM"
        what = rng.randrange(12)
        if what <= 1:
            await plane.call(controller.split(rng.choice(layout.active).id))
        elif what == 2 and len(layout.active) > 1:
            at = rng.randrange(len(layout.active) - 1)
            await plane.call(controller.merge([segment.id for segment in layout.active[at : at + 2]]))
        elif what == 3:
            await plane.call(controller.rebucket(rng.choice(layout.active).id, [rng.randint(2, 60000)]))
        elif what <= 5:
            start = rng.choice(["earliest", "latest"])
            await plane.call(controller.ensure_subscription(sub, kind, start))  # type: ignore[arg-type]
            self.confirmed.add(sub)
        elif what == 6 and sub != "q":
            start_at: InitialPosition | None = rng.choice(["latest", None])
            request = RegistrationRequest(start=start_at)
            self.registrations.append(await plane.join(f"c{rng.randrange(3)}", None, sub, request))
        elif what == 7 and self.registrations:
            registration = rng.choice(self.registrations)
            if rng.random() < 0.5:
                controller.connection_lost(registration)
            else:
                await plane.call(controller.leave(registration))
        elif what == 8:
            await plane.call(controller.seek(sub, rng.choice([0, plane.clock.wall_ms()])))
        elif what == 9:
            await plane.call(controller.delete_subscription("s2", force=True))
        elif what == 10:
            await plane.call(controller.upkeep.prune())
        else:
            self.traffic(layout, sub)

    def traffic(self, layout: Layout, sub: str) -> None:
        for segment in layout.segments.values():
            name = self.plane.segment(layout, segment.id)
            stored = self.plane.disk.stored.get(name)
            if stored is None:
                continue
            if not stored.sealed:
                stored.entries.append(self.plane.clock.wall_ms())
            if sub in stored.cursors and self.rng.random() < 0.7:
                self.plane.disk.acknowledge(name, sub)

    async def settle(self) -> None:
        """All faults heal; within 30 s the controller must repair everything without a request."""
        self.calm = True
        self.plane.kill()
        await self.boot()
        await asyncio.sleep(30)
        layout = await self.plane.audit()
        controller = await self.plane.controller()
        assert controller.why()["troubles"] == {}
        for sub in sorted(self.confirmed - {"s2"}):
            assert sub in controller.records, f"{sub} was confirmed and is gone"
        for before, after in zip(self.seen, self.seen[1:], strict=False):
            assert check_step(before, after) == ()
        for sub in SUBSCRIPTIONS:
            for name, stored in self.plane.disk.stored.items():
                if sub in stored.cursors:
                    self.plane.disk.acknowledge(name, sub)
        await asyncio.sleep(1)
        for sub, record in controller.records.items():
            if record.initial_position is not None:
                assert set(record.drained) == {s.id for s in layout.sealed}, f"{sub} waits for nothing"
        await self.plane.stop()


@pytest.mark.parametrize(
    "seed", [block * 1000 + number for block in range(4) for number in range(SEEDS // 4)]
)
async def test_layout_storage_and_subscriptions_agree_in_the_end(loop: SimLoop, seed: int) -> None:
    retention_s = random.Random(seed).choice([None, 0.0, 0.5])
    plane = ControlPlane(loop, replace(MANUAL, retention_s=retention_s))
    await Life(plane, random.Random(seed)).run()
