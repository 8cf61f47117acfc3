"""The work of one control process on a real cluster: layout operations, and the takeover of its topics."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from anabranch import AsyncAdminClient
from anabranch.control.drain_polls import AT_ONCE
from anabranch.control.pulsar_admin import PulsarAdmin, admin_urls
from anabranch.errors import AnabranchError, ConflictError, in_words
from anabranch.model.names import TopicName
from benchmarks.results import Row, percentile_ms
from simulation.harness.pulsar.control import ControlServer

TOPICS: Final = 16
"""Topics whose layouts change at the same time."""

CALLERS: Final = 16
CALL_S: Final = 120.0
PAUSE_S: Final = 0.1
TAKEOVER_S_MAX: Final = 300.0


def operations(control: ControlServer, seconds: float) -> list[Row]:
    """Splits and merges per second over several topics, without messages."""
    began_cpu_s = cpu_s(control.pid)
    found = asyncio.run(_change_layouts(control.http_url, seconds))
    times_s = [one for one in found if one]
    used_s = cpu_s(control.pid) - began_cpu_s
    return [
        Row(
            f"splits and merges of one control process, {TOPICS} topics at a time",
            "op/s",
            len(times_s) / seconds,
            series={"failed": (len(found) - len(times_s)) / seconds},
        ),
        Row(
            "time of a split or merge, p50",
            "ms",
            percentile_ms(times_s, 50),
            series={"p99": percentile_ms(times_s, 99), "CPU of the process": used_s / len(times_s) * 1e3},
        ),
    ]


async def _change_layouts(http_url: str, seconds: float) -> list[float]:
    names = [f"operated-{number}" for number in range(TOPICS)]
    async with AsyncAdminClient(http_url) as admin:
        for name in names:
            await _create_one(admin, name)
        until_s = time.perf_counter() + seconds
        found = await asyncio.gather(*(_change_until(admin, name, until_s) for name in names))
    return [one for times_s in found for one in times_s]


async def _change_until(admin: AsyncAdminClient, topic: str, until_s: float) -> list[float]:
    """Split and merge in turn; returns the seconds of each operation that ended in time, 0 if it failed."""
    times_s: list[float] = []
    while time.perf_counter() < until_s:
        active = await _active(admin, topic)
        began_s = time.perf_counter()
        try:
            if len(active) == 1:
                await admin.split(topic, active[0], timeout=CALL_S)
            else:
                await admin.merge(topic, active, timeout=CALL_S)
        except AnabranchError as error:
            # Pulsar moves topics between its brokers; the leader finishes the operation by itself.
            print(f"    {topic} was not changed in time: {in_words(error)}", file=sys.stderr, flush=True)
            times_s.append(0.0)
            await asyncio.sleep(PAUSE_S)
            continue
        if time.perf_counter() < until_s:
            times_s.append(time.perf_counter() - began_s)
    return times_s


async def _active(admin: AsyncAdminClient, topic: str) -> list[int]:
    segments = (await admin.topic_metadata(topic, timeout=CALL_S)).segments
    return sorted(id_ for id_, segment in segments.items() if segment.state == "ACTIVE")


def polls(pulsar_http_url: str, seconds: float) -> list[Row]:
    """Measure how many drain polls per second the cluster answers. A poll takes two admin calls."""
    polled = asyncio.run(_poll(pulsar_http_url, seconds))
    return [Row(f"drain polls, {AT_ONCE} at a time, two admin calls each", "poll/s", polled / seconds)]


async def _poll(pulsar_http_url: str, seconds: float) -> int:
    admin = PulsarAdmin(admin_urls(pulsar_http_url))
    topics = [TopicName.parse(text) for text in await admin.topics("public/default")]
    until_s, found = time.perf_counter() + seconds, 0

    async def poll_on(first: int) -> None:
        nonlocal found
        for at in count(first, AT_ONCE):
            topic = topics[at % len(topics)]
            with suppress(AnabranchError):
                await admin.internals(topic)
                await admin.stats(topic)
            if time.perf_counter() > until_s:
                return
            found += 1

    await asyncio.gather(*(poll_on(first) for first in range(AT_ONCE)))
    await admin.close()
    return found


def takeover(leader: ControlServer, heir: ControlServer, zookeeper_url: str, topics: int) -> list[Row]:
    """Kill a leader of many topics; the seconds until the heir has answered as the leader of each of them."""
    names = [f"taken-{number}" for number in range(topics)]
    nodes, began_s = zookeeper_nodes(zookeeper_url), time.perf_counter()
    asyncio.run(_create(leader.http_url, names))
    created_s = time.perf_counter() - began_s
    nodes = zookeeper_nodes(zookeeper_url) - nodes
    heir.start()
    leader.kill()
    killed_s = time.perf_counter()
    led_s = asyncio.run(_led(heir.http_url, names))
    return [
        Row(f"{topics:,} topics: create, {CALLERS} at a time", "topic/s", topics / created_s),
        Row(f"{topics:,} topics: nodes of ZooKeeper for each", "nodes", nodes / topics),
        Row(
            f"{topics:,} topics: SIGKILL of their leader until another process leads all",
            "s",
            max(led_s) - killed_s,
            series={"the first": min(led_s) - killed_s},
        ),
    ]


async def _create(http_url: str, names: Iterable[str]) -> None:
    async with AsyncAdminClient(http_url) as admin:
        waiting = iter(names)

        async def create_some() -> None:
            for name in waiting:
                await _create_one(admin, name)

        await asyncio.gather(*(create_some() for _ in range(CALLERS)))


async def _create_one(admin: AsyncAdminClient, name: str) -> None:
    """Create a topic; a call that failed on the way to Pulsar is repeated."""
    while True:
        try:
            await admin.create_topic(name, timeout=CALL_S)
        except ConflictError:
            return
        except AnabranchError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(PAUSE_S)
        else:
            return


async def _led(http_url: str, names: Iterable[str]) -> list[float]:
    """Return the times at which the process at this address first answered as the leader of each topic."""
    async with AsyncAdminClient(http_url) as admin, asyncio.timeout(TAKEOVER_S_MAX):
        waiting = iter(names)
        found: list[float] = []

        async def ask_some() -> None:
            for name in waiting:
                found.append(await _led_at(admin, name))

        await asyncio.gather(*(ask_some() for _ in range(CALLERS)))
        return found


async def _led_at(admin: AsyncAdminClient, name: str) -> float:
    while True:
        try:
            await admin.why(name, timeout=CALL_S)
        except AnabranchError:
            await asyncio.sleep(PAUSE_S)
        else:
            return time.perf_counter()


def zookeeper_nodes(url: str) -> int:
    """The nodes that the first ZooKeeper of `zk://host:port...` holds, those of Pulsar too."""
    host, _, port = url.removeprefix("zk://").partition("/")[0].partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=CALL_S) as connection:
        connection.sendall(b"srvr")
        answer = connection.makefile("r").read()
    return next(int(line.split()[-1]) for line in answer.splitlines() if line.startswith("Node count"))


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
