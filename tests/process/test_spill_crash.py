"""SIGKILL at every step of a spill, as a real process: no message of a stuck key is lost or overtaken."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from urllib.request import urlopen

import pytest

from anabranch.cli.main import main
from anabranch.data.backup import back_up
from anabranch.data.restore import restore
from simulation.harness.process import BrokerProcess
from tests.harness.hot_keys import HotConsumer, HotPublisher, half, keys_of_half, until
from tests.process.small_disk import SmallDisk

from .conftest import MakeBroker

COPYING = ("spill.copied", "spill.synced", "spill.acknowledged")
DRAINING = ("spill.drained", "spill.deleted")
LOW, HIGH = keys_of_half(False, 50), keys_of_half(True, 50)
ROUNDS = 20


class Spills:
    """A broker whose lanes are spilled at once, and the numbers that consumers saw over all its starts."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._numbers: dict[str, int] = {}
        """The next number of each key."""
        self._seen: dict[str, int] = {}

    async def start(self, failpoints: str = "") -> None:
        self.broker.start(failpoints=failpoints)
        await self.open_publisher()

    async def open_publisher(self) -> None:
        self.publisher = await HotPublisher.open(self.broker.port, self._numbers)
        self._numbers = self.publisher.numbers

    async def consumers(self) -> tuple[HotConsumer, HotConsumer]:
        """A consumer without permits, and one that keeps receiving."""
        port = self.broker.port
        found = (
            await HotConsumer.open(port, 1, half(False), 0),
            await HotConsumer.open(port, 2, half(True), 1000),
        )
        for consumer in found:
            # An acknowledged message may be delivered again, but no message may be missing.
            consumer.seen = self._seen
        return found

    async def publish(self) -> None:
        await self.publisher.publish(chain.from_iterable(repeat(LOW + HIGH, ROUNDS)))

    async def spilled(self) -> None:
        """Wait until lanes are spilled."""

        def seen() -> bool:
            with urlopen(f"{self.broker.http_url}/metrics") as answer:
                text = answer.read().decode()
            return re.search(r"^anabranch_lane_spilled_bytes{[^}]*} [1-9]", text, re.MULTILINE) is not None

        for _ in range(100):
            if await asyncio.to_thread(seen):
                return
            await asyncio.sleep(0.1)
        raise AssertionError("no lane was spilled")

    async def die(self, *consumers: HotConsumer) -> None:
        """Take deliveries until the broker is killed."""

        def dead() -> bool:
            for consumer in consumers:
                consumer.take()
            return not self.broker.running

        await until(dead, "the broker comes to the step", 20)
        assert self.broker.wait(5) == -9

    async def take_all(self) -> None:
        stuck, healthy = await self.consumers()
        stuck.flow(1000)

        def done() -> bool:
            healthy.take()
            return stuck.has(self._numbers, LOW + HIGH)

        await stuck.take_until(done, 30)
        await asyncio.sleep(0.1)
        for consumer in (stuck, healthy):
            consumer.take()
            consumer.close()


async def test_a_kill_at_any_step_of_a_spill_loses_and_reorders_nothing(make_broker: MakeBroker) -> None:
    spills = Spills(make_broker(lane_retained_bytes=0))
    for step in COPYING:
        await spills.start(f"{step}=kill")
        await spills.publish()
        _, healthy = await spills.consumers()
        await spills.die(healthy)
    await spills.start()
    await spills.publish()
    await spills.take_all()


async def test_a_kill_while_a_side_log_is_deleted_brings_nothing_back(make_broker: MakeBroker) -> None:
    spills = Spills(make_broker(lane_retained_bytes=0))
    for step in DRAINING:
        await spills.start(f"{step}=kill")
        await spills.publish()
        stuck, healthy = await spills.consumers()
        await healthy.take_until(partial(healthy.has, spills.publisher.numbers, HIGH), 20)
        await spills.spilled()
        stuck.flow(10_000)
        await spills.die(stuck, healthy)
    await spills.start()
    await spills.publish()
    await spills.take_all()


async def test_a_backup_and_the_tools_for_stores_know_spilled_entries(
    make_broker: MakeBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spills = Spills(make_broker(lane_retained_bytes=0))
    await spills.start()
    await spills.publish()
    _, healthy = await spills.consumers()
    await healthy.take_until(lambda: healthy.has(spills.publisher.numbers, HIGH), 20)
    await spills.spilled()
    await asyncio.to_thread(back_up, spills.broker.data, tmp_path / "backup")
    spills.broker.stop()
    copy = make_broker("copy", lane_retained_bytes=0)
    await asyncio.to_thread(restore, tmp_path / "backup", copy.data)
    for data in (spills.broker.data, copy.data):
        assert await asyncio.to_thread(main, ["store", "check", "--data", str(data)]) == 0
        assert await asyncio.to_thread(main, ["store", "show", "--data", str(data)]) == 0
        assert re.search(r"spill://\S+: [1-9][0-9]* spilled entries of \S+ sub", capsys.readouterr().out)
    spills.broker = copy
    await spills.start()
    await spills.take_all()


async def test_a_full_disk_delays_a_spill_and_no_delivery(make_broker: MakeBroker, disk: SmallDisk) -> None:
    spills = Spills(make_broker("small/data"))
    spills.broker.entrance, spills.broker.data_here = disk.entrance, disk.inside / "data"
    await spills.start()
    await spills.publish()
    _, healthy = await spills.consumers()
    await healthy.take_until(partial(healthy.has, spills.publisher.numbers, HIGH), 20)
    spills.broker.stop()

    disk.fill()
    spills.broker = make_broker("small/data", lane_retained_bytes=0)
    spills.broker.entrance, spills.broker.data_here = disk.entrance, disk.inside / "data"
    spills.broker.start()
    stuck, healthy = await spills.consumers()
    await until(lambda: "lanes cannot be spilled" in spills.broker.log_text, "a spill fails", 20)
    stuck.flow(ROUNDS)
    await stuck.take_until(lambda: stuck.count >= ROUNDS, 20)
    stuck.close()
    healthy.close()

    disk.free()
    waiting = await spills.consumers()
    await spills.spilled()
    for consumer in waiting:
        consumer.close()
    await spills.open_publisher()
    await spills.publish()
    await spills.take_all()
