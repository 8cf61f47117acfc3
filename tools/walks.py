"""Count what a reader meets on the way of one request through the code.

Each walk runs on a simulated broker in this process, real code on a virtual clock, so two runs give the same
numbers. Three figures are counted while the caller waits for the result:

    calls     how often a Python function of the package was entered, resumed coroutines included
    files     how many distinct files those functions are in
    switches  how often the next call is in another file than the one before

The walks, and where each one starts and ends:

    send        `send` of an open producer, until its receipt arrives
    receive     the same `send`, until a stream consumer that waits for it returns the message
    assignment  `subscribe_stream` on a topic with one segment, until it returns
    split       `split` of that segment at the leader, until the leader answers
    close       `close` of an idle stream consumer, until it returns

Three scopes narrow the figures down. `whole` counts everything that runs meanwhile, in client and broker.
`client` counts files of `anabranch.client` only. `task` counts files of `anabranch.client.consume`, and only
in the caller's task: the code that a developer steps through before changing a consumer. Files of the
simulator and compiled functions are never counted.

    python -m tools.walks                      all walks, all scopes
    python -m tools.walks --walk send --show   the calls of one walk, one line for each stay in a file
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType

import anabranch
from anabranch import AsyncClient
from anabranch.config.broker import BrokerConfig
from anabranch.model.names import TopicName
from anabranch.model.policy import AutoScalePolicy
from simulation.cluster.cluster import Cluster
from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess

PACKAGE = f"{Path(inspect.getfile(anabranch)).parent}/"
UNCOUNTED = "testing/"
TOPIC = TopicName("topic", "public", "default", "orders")
QUIET_S = 0.7
"""Pause before a walk, so that nothing left over from the one before it is counted."""


@dataclass(frozen=True, slots=True)
class Call:
    """One entry into a function of the package."""

    file: str
    function: str
    by_caller: bool
    """Whether it ran in the task that the walk started in."""


class Walk:
    """The calls of one walk, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._task: asyncio.Task[object] | None = None

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Record all calls inside the `with` block."""
        self._task = asyncio.current_task()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        file = frame.f_code.co_filename.removeprefix(PACKAGE)
        if not file.startswith(UNCOUNTED):
            self.calls.append(Call(file, frame.f_code.co_qualname, asyncio.current_task() is self._task))

    def scopes(self) -> dict[str, list[Call]]:
        return {
            "whole": self.calls,
            "client": [call for call in self.calls if call.file.startswith("client/")],
            "task": [
                call for call in self.calls if call.by_caller and call.file.startswith("client/consume/")
            ],
        }


class World:
    """A broker and a client that the walks use, one after the other."""

    def __init__(self, cluster: Cluster, client: AsyncClient) -> None:
        self._cluster = cluster
        self._client = client

    async def send(self, walk: Walk) -> None:
        producer = await self._client.create_producer(str(TOPIC))
        await producer.send(b"first", key="key")
        await asyncio.sleep(QUIET_S)
        with walk.traced():
            await producer.send(b"second", key="key")

    async def receive(self, walk: Walk) -> None:
        producer = await self._client.create_producer(str(TOPIC))
        consumer = await self._client.subscribe_stream(str(TOPIC), "subscription")
        await producer.send(b"first", key="key")
        await consumer.receive()
        await asyncio.sleep(QUIET_S)
        with walk.traced():
            await asyncio.gather(producer.send(b"second", key="key"), consumer.receive())

    async def assignment(self, walk: Walk) -> None:
        await asyncio.sleep(QUIET_S)
        with walk.traced():
            await self._client.subscribe_stream(str(TOPIC), "subscription")

    async def split(self, walk: Walk) -> None:
        await asyncio.sleep(QUIET_S)
        with walk.traced():
            await self._cluster.with_controller(TOPIC, lambda leader: leader.split(0))

    async def close(self, walk: Walk) -> None:
        consumer = await self._client.subscribe_stream(str(TOPIC), "subscription")
        await asyncio.sleep(QUIET_S)
        with walk.traced():
            await consumer.close()


WALKS: dict[str, Callable[[World, Walk], Awaitable[None]]] = {
    "send": World.send,
    "receive": World.receive,
    "assignment": World.assignment,
    "split": World.split,
    "close": World.close,
}


def take(name: str) -> Walk:
    """Take one walk on a fresh broker with one topic of one segment."""
    walk = Walk()

    async def application(cluster: Cluster, process: SimProcess) -> None:
        async with cluster.client(process) as client:
            await WALKS[name](World(cluster, client), walk)

    async def main(loop: SimLoop) -> None:
        cluster = Cluster(loop, config=BrokerConfig(workers=1, auto_scale=AutoScalePolicy(enabled=False)))
        running = loop.create_task(cluster.keep_up())
        await cluster.hosts[0].up.wait()
        await cluster.in_broker(lambda broker: broker.controllers.create_topic(TOPIC, 1))
        process = SimProcess(loop, "client")
        await process.spawn(application(cluster, process))
        running.cancel()

    with SimLoop("walks") as loop:
        loop.run(main(loop))
    return walk


def figures(calls: list[Call]) -> tuple[int, int, int]:
    """Return the number of calls, of distinct files and of switches between files."""
    files = [call.file for call in calls]
    return len(files), len({*files}), sum(before != after for before, after in pairwise(files))


def show(walk: Walk) -> None:
    """Print the walk as a reader would follow it, one line for each stay in a file."""
    for file, stay in groupby(walk.calls, key=lambda call: call.file):
        print(f"{file:44} {', '.join(call.function for call in stay)}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Count calls, files and switches on walks through the code.")
    parser.add_argument("--walk", choices=WALKS, action="append", help="one walk; all by default")
    parser.add_argument("--show", action="store_true", help="print the calls too")
    options = parser.parse_args()
    print(f"{'walk':12} {'scope':8} {'calls':>6} {'files':>6} {'switches':>9}")
    for name in options.walk or WALKS:
        walk = take(name)
        for scope, calls in walk.scopes().items():
            if calls:
                called, files, switches = figures(calls)
                print(f"{name:12} {scope:8} {called:6} {files:6} {switches:9}")
        if options.show:
            show(walk)
    return 0


if __name__ == "__main__":
    sys.exit(main())
