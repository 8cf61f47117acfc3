"""The main job in one run: publish, split, kill, merge, consume, Spark; and a report.

Two workers start on an empty directory. A producer publishes keyed events at a steady rate while the topic is
split by hand and by load. In the middle of a split the worker that leads the topic is killed with SIGKILL,
and another worker finishes the split. At the end the segments are merged. Two stream consumers and one Spark
streaming job read all events. The report counts lost and reordered events, and a picture shows all segments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from anabranch import AsyncClient, AsyncProducer
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess

TOPIC = "topic://public/default/orders"
NAME = TopicName.parse(TOPIC)
CUSTOMERS = [f"customer-{n}" for n in range(500)]
SETTINGS = {
    # Small thresholds and short waits show within a minute what takes a day in production.
    "scalableTopicSplitMsgRateInThreshold": 3000,
    "scalableTopicMergeMsgRateInThreshold": 100,
    "scalableTopicSplitCooldownSeconds": 2,
    "scalableTopicAutoScaleIntervalSeconds": 1,
    "scalableTopicMaxSegments": 6,
    "workers": 2,
    "lease_s": 2,
}
SPARK_JOB = Path(__file__).with_name("demo_spark.py")
READY = "ready"
"""The file that the Spark job creates when it reads."""
COLUMNS = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
console = Console()


@dataclass
class DemoReader:
    """The events of one subscription: counts each event once and checks the order of each customer."""

    name: str
    total: int
    seen: bytearray = field(default_factory=bytearray)
    count: int = 0
    repeated: int = 0
    reordered: int = 0
    last: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: -1))

    def __post_init__(self) -> None:
        self.seen = bytearray(self.total)

    def take(self, key: str, number: int) -> None:
        if self.seen[number]:
            self.repeated += 1
            return
        self.seen[number] = 1
        self.count += 1
        if number < self.last[key]:
            self.reordered += 1
        self.last[key] = max(self.last[key], number)

    @property
    def lost(self) -> int:
        return self.total - self.count


async def publish(
    producer: AsyncProducer[Any], total: int, rate: int, progress: Progress, bar: TaskID
) -> None:
    """Enqueue all events at about `rate` a second, and wait for every receipt."""
    began = time.monotonic()
    step = max(1, rate // 50)
    for first in range(0, total, step):
        for number in range(first, min(first + step, total)):
            await producer.enqueue(str(number).encode(), key=CUSTOMERS[number % len(CUSTOMERS)])
        progress.update(bar, completed=min(first + step, total))
        await asyncio.sleep(max(0.0, began + (first + step) / rate - time.monotonic()))
    await producer.flush()


async def consume(url: str, name: str, reader: DemoReader, progress: Progress, bar: TaskID) -> None:
    async with AsyncClient(url) as client:
        consumer = await client.subscribe_stream(TOPIC, "billing", name=name, initial_position="earliest")
        while reader.lost:
            messages = await consumer.receive_many(1000, timeout=0.5)
            for message in messages:
                assert message.key is not None
                reader.take(message.key, int(message.data))
            if messages:
                await consumer.acknowledge_cumulative(messages[-1])
            progress.update(bar, completed=reader.count)
        await consumer.close()


async def watch_spark(
    job: subprocess.Popen[bytes], output: Path, reader: DemoReader, progress: Progress, bar: TaskID
) -> None:
    """Read the files that the Spark job writes after each micro-batch."""
    taken = 0
    while reader.lost:
        if job.poll() is not None:
            raise RuntimeError(f"the Spark job ended:\n{(output.parent / 'spark.log').read_text()[-8000:]}")
        for path in sorted(output.glob("batch-*.json"))[taken:]:
            for key, number in json.loads(path.read_text()):
                reader.take(key, number)
            taken += 1
        progress.update(bar, completed=reader.count)
        await asyncio.sleep(0.2)


@dataclass
class Publishing:
    """The task that publishes, and its progress."""

    task: asyncio.Task[None]
    progress: Progress
    bar: TaskID
    total: int

    async def until(self, part: float) -> None:
        while self.progress.tasks[self.bar].completed < self.total * part and not self.task.done():
            await asyncio.sleep(0.05)


async def steer(broker: BrokerProcess, admin: AdminClient, published: Publishing, failpoints: Path) -> None:
    """Split early, kill the leader in the middle of a later split, merge after the last event."""
    say = published.progress.console.print
    await published.until(0.15)
    widest = _widest(admin)
    await asyncio.to_thread(admin.split, NAME, widest)
    say(f"  split segment {widest} by hand")
    await published.until(0.5)
    leader = broker.owner_of(plain(admin.topic_metadata(NAME))["store"])
    assert leader is not None
    failpoints.write_text("split.sealed=kill")
    widest = _widest(admin)
    try:
        await asyncio.to_thread(admin.split, NAME, widest)
    except AnabranchError as error:
        say(f"  split segment {widest}: {error}")
    began = time.monotonic()
    while Path(f"/proc/{leader[1]}").exists() or broker.owner_of(leader[0]) is None:
        await asyncio.sleep(0.01)
    say(f"  worker {leader[0]} leads the topic; SIGKILL ended it in the middle of the split")
    while plain(admin.topic_metadata(NAME))["intent"] is not None:
        await asyncio.sleep(0.01)
    say(f"  the split was finished {time.monotonic() - began:.2f} s later")
    await published.task
    active = [s["segmentId"] for s in _active(plain(admin.topic_metadata(NAME)))]
    if len(active) > 1:
        await asyncio.to_thread(admin.merge, NAME, active)
        say(f"  merged segments {', '.join(map(str, active))} by hand")


def _widest(admin: AdminClient) -> int:
    active = _active(plain(admin.topic_metadata(NAME)))
    widest = max(active, key=lambda s: s["hashRange"]["end"] - s["hashRange"]["start"])
    return int(widest["segmentId"])


def _active(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    active = [s for s in metadata["segments"].values() if s["state"] == "ACTIVE"]
    return sorted(active, key=lambda segment: segment["hashRange"]["start"])


def start_spark(url: str, output: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(SPARK_JOB), url, str(output), str(output.parent / "checkpoint")],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        stdout=(output.parent / "spark.log").open("w"),
        stderr=subprocess.STDOUT,
    )


async def run(total: int, rate: int, scratch: Path) -> int:
    began = time.monotonic()
    broker = BrokerProcess(scratch / "data", SETTINGS)
    output = scratch / "spark"
    output.mkdir()
    failpoints = scratch / "failpoints"
    with broker.start(failpoints=f"@{failpoints}"):
        console.print(f"two workers ready in {broker.started_in_s:.2f} s at {broker.url}")
        admin = AdminClient(broker.http_url)
        admin.create_topic(NAME, segments=1)
        job = start_spark(broker.url, output)
        stream = DemoReader("stream consumers", total)
        spark = DemoReader("Spark streaming", total)
        try:
            with Progress(*COLUMNS, console=console) as progress:
                sending = progress.add_task("published", total=total)
                streaming = progress.add_task(stream.name, total=total)
                sparking = progress.add_task(spark.name, total=total)
                async with (
                    AsyncClient(broker.url) as client,
                    asyncio.timeout(600),
                    asyncio.TaskGroup() as tasks,
                ):
                    for name in ("billing-a", "billing-b"):
                        tasks.create_task(consume(broker.url, name, stream, progress, streaming))
                    tasks.create_task(watch_spark(job, output, spark, progress, sparking))
                    # Load during the start of Spark could exceed its limit of ten seconds for a worker.
                    while not (output / READY).exists():
                        await asyncio.sleep(0.1)
                    producer = await client.create_producer(TOPIC, send_timeout=60.0)
                    task = tasks.create_task(publish(producer, total, rate, progress, sending))
                    published = Publishing(task, progress, sending, total)
                    tasks.create_task(steer(broker, admin, published, failpoints))
        finally:
            job.terminate()
            job.wait()
        return report(broker, admin, [stream, spark], time.monotonic() - began)


def report(broker: BrokerProcess, admin: AdminClient, readers: list[DemoReader], seconds: float) -> int:
    segments = plain(admin.topic_metadata(NAME))["segments"].values()
    splits = {tuple(s["parentIds"]) for s in segments if len(s["parentIds"]) == 1}
    merges = [s for s in segments if len(s["parentIds"]) > 1]
    subprocess.run(
        [sys.executable, "-m", "anabranch.cli.main", "topic", "show", TOPIC, "--admin-url", broker.http_url],
        check=True,
    )
    table = Table(title="What happened")
    for column in ("reader", "messages", "lost", "reordered", "repeated"):
        table.add_column(column, justify="left" if column == "reader" else "right")
    for reader in readers:
        figures = (reader.count, reader.lost, reader.reordered, reader.repeated)
        table.add_row(reader.name, *(f"{figure:,}" for figure in figures))
    console.print(table)
    total, lost = readers[0].total, sum(reader.lost for reader in readers)
    reordered = sum(reader.reordered for reader in readers)
    console.print(
        f"messages {total:,}, lost {lost}, reordered {reordered}, "
        f"splits {len(splits)}, merges {len(merges)}, seconds {seconds:.1f}"
    )
    return 0 if lost == reordered == 0 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000, help="events to publish")
    parser.add_argument("--rate", type=int, default=5000, help="events a second")
    parser.add_argument("--fast", action="store_true", help="publish faster: the run ends within a minute")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anabranch-demo-") as scratch:
        return asyncio.run(run(arguments.messages, 9000 if arguments.fast else arguments.rate, Path(scratch)))


if __name__ == "__main__":
    sys.exit(main())
