"""SIGKILL at every step of every operation, as a real process.

All topics are on one broker. Each start is armed with the failpoint of the next step, so that a step costs
one start; neighbours in the order are of different operations, since finishing one passes its own steps
again. With several workers, the worker that reaches the step is killed, and the test starts no broker.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import pytest

from anabranch import AsyncClient, AsyncQueueConsumer, AsyncStreamConsumer, Client, Message
from anabranch.admin.client import AdminClient
from anabranch.admin.models.body import plain
from anabranch.controller.topic import layout_changes
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from simulation.judges.layout_checks import check

from .conftest import MakeBroker
from .stored import NAMESPACE, check_stored, keys_over_the_ring, stored_topics

KEYS = keys_over_the_ring(32)
BEFORE = 2 * len(KEYS)
AFTER = len(KEYS)
WRITABLE_S_MAX = 2.0

Consumer = AsyncStreamConsumer[bytes] | AsyncQueueConsumer[bytes]
Ask = Callable[[AdminClient, TopicName], None]

OPERATIONS: dict[str, Ask] = {
    "create": lambda admin, name: admin.create_topic(name, 3),
    "delete": lambda admin, name: admin.delete_topic(name),
    "split": lambda admin, name: admin.split(name, 0),
    "merge": lambda admin, name: admin.merge(name, [0, 1]),
    "rebucket": lambda admin, name: admin.rebucket(name, 0, bucket_count=3),
    "subscription.create": lambda admin, name: admin.create_subscription(name, "late"),
    "subscription.delete": lambda admin, name: admin.delete_subscription(name, "stream"),
    "subscription.seek": lambda admin, name: admin.seek(name, "stream", 0),
    "subscription.skip": lambda admin, name: admin.skip_all(name, "stream"),
}
LAYOUT_STEPS = [(kind, step) for step in layout_changes.STEPS for kind in ("split", "merge", "rebucket")]
OTHER_STEPS = [
    *(("create", step) for step in ("planned", "created.first", "created", "sealed", "committed")),
    *(("subscription." + verb, step) for verb in ("create", "seek") for step in ("recorded", "applied")),
    *(("delete", step) for step in ("swept", "forgotten", "listed", "marked")),
    *(("subscription." + verb, step) for verb in ("delete", "skip") for step in ("recorded", "applied")),
]
STEPS = [step for pair in zip_longest(LAYOUT_STEPS, OTHER_STEPS) for step in pair if step is not None]
WORKER_STEPS = [
    *(("split", step) for step in layout_changes.STEPS),
    *(("merge", step) for step in ("sealed.first", "inherited.first", "committed")),
    *(step for step in OTHER_STEPS if step[0] in ("create", "delete", "subscription.create")),
]
LEASE_S = 1.0


@dataclass
class Prepared:
    """A topic before the crash, and the numbers that each subscription has not acknowledged."""

    name: TopicName
    left: dict[str, set[int]] = field(default_factory=dict)


class Crashes:
    """The broker of this file, and the topics prepared on it."""

    def __init__(self, data: Path, **settings: object) -> None:
        self.broker = BrokerProcess(data, {"scalableTopicAutoScaleEnabled": "false", **settings})
        self.ready_at = 0.0
        self.prepared: dict[tuple[str, str], Prepared] = {}
        self._armed = ""

    def start(self, kind: str, step: str) -> None:
        """Have the broker run, armed with this step."""
        if self.broker.running and self._armed == f"{kind}.{step}":
            return
        self.broker.kill()
        self._armed = f"{kind}.{step}"
        self.broker.start(failpoints=f"{self._armed}=kill" if step else "")
        self.ready_at = time.monotonic()

    def crash(self, kind: str, name: TopicName) -> None:
        with AdminClient(self.broker.http_url) as admin, pytest.raises(AnabranchError):
            OPERATIONS[kind](admin, name)
        assert self.broker.wait(10) == -9

    async def prepare(self, steps: Iterable[tuple[str, str]]) -> None:
        self.start("", "")
        async with AsyncClient(self.broker.url) as client:
            with AdminClient(self.broker.http_url) as admin:
                self.prepared = {step: self._make(admin, *step) for step in steps}
            await asyncio.gather(*(fill(client, topic) for topic in self.prepared.values() if topic.left))

    def _make(self, admin: AdminClient, kind: str, step: str) -> Prepared:
        topic = Prepared(TopicName.parse(f"topic://{NAMESPACE}/{kind}-{step}"))
        if kind == "create":
            return topic
        admin.create_topic(topic.name, 2)
        for sub in ("stream", "queue"):
            admin.create_subscription(topic.name, sub, sub.upper())
            topic.left[sub] = set(range(BEFORE))
        return topic


class WorkerCrashes(Crashes):
    """Three workers, of which the one that comes first to the step is killed.

    One that dies again and again is not started at once, so that a second one is often missing.
    """

    def __init__(self, data: Path) -> None:
        super().__init__(data, workers=3, lease_s=LEASE_S)
        self._file = data.parent / "failpoints"

    def start(self, kind: str, step: str) -> None:
        if not self.broker.running:
            self.broker.start(failpoints=f"@{self._file}")
        if step:
            wait_until(lambda: self._owners() >= 2, "two workers")
            self._file.write_text(f"{kind}.{step}=kill")

    def _owners(self) -> int:
        return len({owner for store in range(3) if (owner := self.broker.owner_of(store)) is not None})

    def crash(self, kind: str, name: TopicName) -> None:
        answer = self._ask(kind, name)
        if answer is not None and self._file.exists():
            # A worker that a busy machine held up longer than a lease is ended, and its callers ask again.
            answer = self._ask(kind, name)
        wait_until(lambda: not self._file.exists(), f"a worker that comes to the step; the call: {answer}")
        self.ready_at = time.monotonic()

    def _ask(self, kind: str, name: TopicName) -> AnabranchError | None:
        """Request the operation; return the error of the call, for instance because its worker was killed."""
        try:
            with AdminClient(self.broker.http_url) as admin:
                OPERATIONS[kind](admin, name)
        except AnabranchError as error:
            return error
        return None


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.005)


async def publish(client: AsyncClient, name: TopicName, numbers: range) -> None:
    producer = await client.create_producer(str(name))
    keys = [KEYS[n % len(KEYS)] for n in numbers]
    await producer.send_many([str(n).encode() for n in numbers], keys=keys)
    await producer.close()


@asynccontextmanager
async def reading(client: AsyncClient, name: TopicName, sub: str) -> AsyncIterator[Consumer]:
    subscribe = client.subscribe_queue if sub == "queue" else client.subscribe_stream
    # A lost cursor would be made again at this position, and miss earlier messages.
    consumer = await subscribe(str(name), sub, initial_position="earliest" if sub == "fresh" else "latest")
    yield consumer
    await consumer.close()


async def take(consumer: Consumer, count: int, *, acknowledge: bool) -> list[Message[bytes]]:
    taken: list[Message[bytes]] = []
    while len(taken) < count:
        messages = await consumer.receive_many(count, timeout=10)
        assert messages, f"only {len(taken)} of {count} messages came"
        taken += messages
        if not acknowledge:
            continue
        if isinstance(consumer, AsyncStreamConsumer):
            await consumer.acknowledge_cumulative(messages[-1])
        else:
            await consumer.acknowledge(messages)
    return taken


async def fill(client: AsyncClient, topic: Prepared) -> None:
    """Publish, and acknowledge some messages: a stream its first ones, a queue every second one."""
    await publish(client, topic.name, range(BEFORE))
    for sub in ("stream", "queue"):
        async with reading(client, topic.name, sub) as consumer:
            messages = await take(consumer, BEFORE, acknowledge=False)
            if isinstance(consumer, AsyncStreamConsumer):
                done = messages[: BEFORE // 3]
                await consumer.acknowledge_cumulative(done[-1])
            else:
                done = messages[::2]
                await consumer.acknowledge(done)
            topic.left[sub] -= {int(message.data) for message in done}


async def drain(client: AsyncClient, name: TopicName, sub: str, expected: set[int]) -> None:
    """Check that the subscription receives these numbers once each, a stream in key order."""
    by_key: dict[str, list[int]] = defaultdict(list)
    async with reading(client, name, sub) as consumer:
        for message in await take(consumer, len(expected), acknowledge=True):
            by_key[message.key or ""].append(int(message.data))
    assert sorted(n for numbers in by_key.values() for n in numbers) == sorted(expected), sub
    if sub != "queue":
        assert all(numbers == sorted(numbers) for numbers in by_key.values())


def expect(kind: str, left: dict[str, set[int]]) -> dict[str, set[int]]:
    """The values that each subscription must read after the operation and one more value of each key."""
    everything, new = set(range(BEFORE + AFTER)), set(range(BEFORE, BEFORE + AFTER))
    if kind in ("create", "delete"):
        return {"fresh": new}
    expected = {sub: numbers | new for sub, numbers in left.items()}
    if kind == "subscription.create":
        expected["late"] = everything
    elif kind == "subscription.seek":
        expected["stream"] = everything
    elif kind == "subscription.skip":
        expected["stream"] = new
    elif kind == "subscription.delete":
        del expected["stream"]
    return expected


def check_nothing_left(admin: AdminClient, name: TopicName, subscriptions: Iterable[str]) -> None:
    """These are the topic's subscriptions, and none of them has anything more to read."""
    deadline = time.monotonic() + 5
    while True:
        stats = plain(admin.topic_stats(name))["subscriptions"]
        assert set(stats) == set(subscriptions)
        if not any(sub["backlog"] for sub in stats.values()):
            return
        assert time.monotonic() < deadline, f"{stats}: there is more than was left"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashes]:
    made = Crashes(tmp_path_factory.mktemp("crashes") / "data")
    try:
        asyncio.run(made.prepare(STEPS))
        yield made
    finally:
        made.broker.kill()


@pytest.mark.parametrize(("kind", "step"), STEPS)
async def test_an_operation_killed_at_a_step_is_finished_by_the_next_start(
    crashes: Crashes, kind: str, step: str
) -> None:
    topic = crashes.prepared[kind, step]
    crashes.start(kind, step)
    crashes.crash(kind, topic.name)
    following = STEPS.index((kind, step)) + 1
    crashes.start(*(STEPS[following] if following < len(STEPS) else ("", "")))
    if kind == "subscription.skip":
        # A skip that was not confirmed may be carried out at any time after the start.
        await finished(crashes.broker, topic.name)
    await check_finished(crashes, kind, topic, WRITABLE_S_MAX)


async def check_finished(crashes: Crashes, kind: str, topic: Prepared, writable_s_max: float) -> None:
    """Check that every hash is writable in time, and each subscription receives its messages."""
    async with AsyncClient(crashes.broker.url) as client:
        await publish(client, topic.name, range(BEFORE, BEFORE + AFTER))
        assert time.monotonic() - crashes.ready_at < writable_s_max, "writable soon, without help"
        expected = expect(kind, topic.left)
        for sub, numbers in expected.items():
            await drain(client, topic.name, sub, numbers)
    with AdminClient(crashes.broker.http_url) as admin:
        check_nothing_left(admin, topic.name, expected)


async def finished(broker: BrokerProcess, name: TopicName) -> None:
    """Wait, without asking the broker, until nothing of the topic is left half done."""
    deadline = time.monotonic() + 5
    while (await stored_topics(broker.data))[0][name].at_work:
        assert time.monotonic() < deadline, "an operation is not finished"
        await asyncio.sleep(0.01)


async def one_cleanup(broker: BrokerProcess) -> None:
    """Wait until no garbage is listed any more, as long as one round takes."""
    deadline = time.monotonic() + 5
    while (await stored_topics(broker.data))[1]:
        assert time.monotonic() < deadline, "garbage stays"
        await asyncio.sleep(0.05)


async def check_no_orphan(crashes: Crashes) -> None:
    crashes.start("", "")
    await one_cleanup(crashes.broker)
    assert crashes.broker.stop() == 0
    for name, topic in (await check_stored(crashes.broker.data)).items():
        assert check(topic.layout) == (), name


async def test_no_orphan_is_left_by_any_of_them(crashes: Crashes) -> None:
    await check_no_orphan(crashes)


@pytest.fixture(scope="module")
def worker_crashes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerCrashes]:
    made = WorkerCrashes(tmp_path_factory.mktemp("workers") / "data")
    try:
        asyncio.run(made.prepare(WORKER_STEPS))
        yield made
    finally:
        made.broker.kill()


@pytest.mark.parametrize(("kind", "step"), WORKER_STEPS)
async def test_an_operation_of_a_killed_worker_is_finished_by_another(
    worker_crashes: WorkerCrashes, kind: str, step: str
) -> None:
    topic = worker_crashes.prepared[kind, step]
    worker_crashes.start(kind, step)
    worker_crashes.crash(kind, topic.name)
    await check_finished(worker_crashes, kind, topic, LEASE_S + WRITABLE_S_MAX)


async def test_no_orphan_is_left_by_any_worker(worker_crashes: WorkerCrashes) -> None:
    await check_no_orphan(worker_crashes)


async def test_pruning_killed_after_its_commit_is_finished_by_the_next_start(make_broker: MakeBroker) -> None:
    broker = make_broker(
        scalableTopicAutoScaleEnabled="false", segment_retention_s=0, auto_scale_interval_s=0.1
    ).start(failpoints="prune.committed=kill")
    name = TopicName.parse(f"topic://{NAMESPACE}/pruned")
    with AdminClient(broker.http_url) as admin:
        admin.create_topic(name)
        admin.create_subscription(name, "stream")
        admin.create_subscription(name, "ahead")
        async with AsyncClient(broker.url) as client:
            await publish(client, name, range(BEFORE))
            await drain(client, name, "ahead", set(range(BEFORE)))
            admin.split(name, 0)
            await publish(client, name, range(BEFORE, BEFORE + AFTER))
            await asyncio.sleep(0.5)
            assert broker.running, "messages that one subscription has not read are kept"
            async with reading(client, name, "stream") as consumer:
                await take(consumer, BEFORE, acknowledge=True)
    assert broker.wait(10) == -9
    broker.start()
    restarted = time.monotonic()
    async with AsyncClient(broker.url) as client:
        await publish(client, name, range(BEFORE + AFTER, BEFORE + 2 * AFTER))
        assert time.monotonic() - restarted < WRITABLE_S_MAX
        for sub in ("ahead", "stream"):
            await drain(client, name, sub, set(range(BEFORE, BEFORE + 2 * AFTER)))
    await one_cleanup(broker)
    assert broker.stop() == 0
    stored = await check_stored(broker.data)
    assert sorted(stored[name].layout.segments) == [1, 2]


def test_a_producer_with_thousands_in_flight_survives_a_kill_and_layout_changes(
    make_broker: MakeBroker,
) -> None:
    total, name = 20_000, TopicName.parse(f"topic://{NAMESPACE}/flood")
    broker = make_broker(scalableTopicAutoScaleEnabled="false").start()
    with AdminClient(broker.http_url) as admin, Client(broker.url) as client:
        admin.create_topic(name)
        admin.create_subscription(name, "stream")
        producer = client.create_producer(str(name), send_timeout=60.0)
        futures = []
        for n in range(total):
            futures.append(producer.enqueue(str(n).encode(), key=KEYS[n % len(KEYS)]))
            if n == total // 4:
                admin.split(name, 0)
            if n == total // 2:
                broker.kill()
                broker.start()
            if n == 3 * total // 4:
                admin.merge(name, [1, 2])
        producer.flush()
        for future in futures:
            future.result(timeout=30)
        producer.close()
    asyncio.run(read_back(broker, name, total))


async def read_back(broker: BrokerProcess, name: TopicName, count: int) -> None:
    async with AsyncClient(broker.url) as client:
        await drain(client, name, "stream", set(range(count)))
