"""Several workers on one data directory: killed, stopped, brought back, with traffic all the while."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from anabranch import AsyncClient, AuthenticationToken
from anabranch.admin.client import AdminClient
from anabranch.errors import AuthorizationError
from anabranch.model.names import TopicName
from simulation.harness.process import BrokerProcess
from tests.harness.rights import RIGHTS
from tests.harness.security import token_for
from tests.process.conftest import MakeBroker

LEASE_S = 1.5
PATIENCE_S = 30.0
OUTAGE_MAX_S = LEASE_S + 2.0
"""What is promised; half of it is usual."""

TOPIC = "topic://public/default/orders"
KEYS = 16


class WorkerTraffic:
    """A producer and a stream consumer that run until `finish` checks their messages."""

    def __init__(self) -> None:
        self.sent: dict[str, list[int]] = defaultdict(list)
        self.received: dict[str, list[int]] = defaultdict(list)
        self.longest_s = 0.0
        """The longest that a message took to be stored, since this was last set to 0."""
        self._going_on = True

    async def send(self, client: AsyncClient) -> None:
        producer = await client.create_producer(TOPIC)
        number = 0
        while self._going_on:
            keys = [f"key-{(number + at) % KEYS}" for at in range(KEYS)]
            began = time.monotonic()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(
                    *(producer.send(b"%d" % (number + at), key=key) for at, key in enumerate(keys))
                )
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            for at, key in enumerate(keys):
                self.sent[key].append(number + at)
            number += KEYS
            await asyncio.sleep(0.005)
        await producer.close()

    async def receive(self, client: AsyncClient) -> None:
        consumer = await client.subscribe_stream(TOPIC, "reader", initial_position="earliest")
        async for message in consumer:
            assert message.key is not None
            self.received[message.key].append(int(message.data))
            await consumer.acknowledge_cumulative(message)

    @property
    def count(self) -> int:
        return sum(map(len, self.received.values()))

    async def flow(self, messages: int = 400) -> None:
        """Wait until this many more messages have been received."""
        goal = self.count + messages
        await until(lambda: self.count >= goal)

    def end(self) -> None:
        self._going_on = False


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def access(broker: BrokerProcess, role: str) -> dict[str, Any]:
    """The credentials of a role as an argument, for a broker that asks for them."""
    guarded = "authorization" in broker.settings
    return {"authentication": AuthenticationToken(token_for(role))} if guarded else {}


@asynccontextmanager
async def traffic(broker: BrokerProcess) -> AsyncIterator[WorkerTraffic]:
    """Traffic through the service URL; at the end every message must have arrived once, each key in order."""
    with AdminClient(broker.http_url, **access(broker, "root")) as admin:
        admin.create_topic(TopicName.parse(TOPIC), 4)
        for role, right in (("sender", "produce"), ("reader", "consume")):
            admin.grant("public/default", role, [right])
    made = WorkerTraffic()
    async with (
        AsyncClient(broker.url, **access(broker, "sender")) as sender,
        AsyncClient(broker.url, **access(broker, "reader")) as reader,
        asyncio.TaskGroup() as tasks,
    ):
        receiving = tasks.create_task(made.receive(reader))
        sending = tasks.create_task(made.send(sender))
        await made.flow()
        made.longest_s = 0.0
        yield made
        await made.flow()
        made.end()
        await sending
        total = sum(map(len, made.sent.values()))
        await until(lambda: made.count >= total)
        receiving.cancel()
    assert made.received == made.sent


@contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def broker(make_broker: MakeBroker, request: pytest.FixtureRequest) -> BrokerProcess:
    """Two workers; their settings may be the parameter of a test."""
    return make_broker(workers=2, lease_s=LEASE_S, **getattr(request, "param", {})).start()


each_worker = pytest.mark.parametrize(
    ("number", "broker"), [(0, {}), (1, RIGHTS)], ids=["0", "1-with-rights"], indirect=["broker"]
)


@each_worker
async def test_a_killed_worker_is_started_again_and_nothing_is_lost(
    broker: BrokerProcess, number: int
) -> None:
    async with traffic(broker) as flowing:
        killed = broker.worker(number)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: broker.owner_of(number) not in (None, (number, killed)))
        assert broker.worker(number) != killed
        await flowing.flow()
        assert flowing.longest_s < OUTAGE_MAX_S
    assert broker.stop() == 0


@each_worker
async def test_the_other_takes_over_from_a_worker_that_stays_dead_and_gives_back_what_is_not_its_own(
    broker: BrokerProcess, number: int
) -> None:
    other = broker.worker(1 - number)
    async with traffic(broker) as flowing:
        with paused(broker.pid):
            os.kill(broker.worker(number), signal.SIGKILL)
            await until(lambda: broker.owner_of(number) == (1 - number, other))
            await flowing.flow()
            assert flowing.longest_s < OUTAGE_MAX_S
        await until(lambda: (broker.owner_of(number) or (-1, 0))[0] == number)
        assert broker.worker(1 - number) == other
        await flowing.flow()
    assert broker.stop() == 0


@each_worker
async def test_a_worker_that_stands_still_is_ended_and_nothing_it_does_later_counts(
    broker: BrokerProcess, number: int
) -> None:
    other = broker.worker(1 - number)
    async with traffic(broker) as flowing:
        # Its remains stay to be looked at as long as the supervisor does not bury them.
        with paused(broker.pid):
            stopped = broker.worker(number)
            with paused(stopped):
                await until(lambda: broker.owner_of(number) == (1 - number, other))
            await flowing.flow()
            assert flowing.longest_s < OUTAGE_MAX_S
            assert state_of(stopped) == "Z"
            assert broker.owner_of(number) == (1 - number, other)
        assert broker.worker(number) != stopped
        await flowing.flow()
    assert broker.stop() == 0


@pytest.mark.parametrize("broker", [RIGHTS], ids=["with-rights"], indirect=True)
async def test_layouts_change_between_workers_under_the_rights_of_callers(broker: BrokerProcess) -> None:
    name = TopicName.parse(TOPIC)
    async with traffic(broker) as flowing:
        with AdminClient(broker.http_url, **access(broker, "root")) as admin:
            for parent in range(4):
                admin.split(name, parent)
                await flowing.flow()
        for role in ("sender", "reader"):
            with (
                AdminClient(broker.http_url, **access(broker, role)) as admin,
                pytest.raises(AuthorizationError),
            ):
                admin.split(name, 4)
    assert broker.stop() == 0


async def test_a_pause_within_the_lease_changes_nothing(make_broker: MakeBroker) -> None:
    broker = make_broker(workers=2, lease_s=20).start()
    before = [broker.worker(number) for number in range(2)]
    async with traffic(broker) as flowing:
        with paused(before[1]):
            await asyncio.sleep(1.0)
        await flowing.flow()
    assert [broker.worker(number) for number in range(2)] == before
    assert broker.stop() == 0


async def test_no_worker_is_ended_after_the_machine_was_suspended(
    make_broker: MakeBroker,
) -> None:
    broker = make_broker(workers=2, lease_s=3).start()
    before = [broker.worker(number) for number in range(2)]
    async with traffic(broker) as flowing:
        for how in (signal.SIGSTOP, signal.SIGCONT):
            for worker in before:
                os.kill(worker, how)
            await asyncio.sleep(4.0)
        await flowing.flow()
    assert [broker.worker(number) for number in range(2)] == before
    assert broker.stop() == 0


async def test_workers_stop_when_their_supervisor_is_gone_and_the_next_one_finds_everything(
    broker: BrokerProcess,
) -> None:
    async with traffic(broker) as flowing:
        workers = [broker.worker(number) for number in range(2)]
        broker.kill_supervisor()
        broker.start()
        assert not any(broker.worker(number) in workers for number in range(2))
        await flowing.flow()
    # Both workers noticed that their supervisor is gone, and stopped cleanly.
    assert broker.log_text.count("stopping") == 2
    assert broker.stop() == 0


def test_workers_that_outlive_their_supervisor_and_stand_still_are_ended_by_the_next(
    broker: BrokerProcess,
) -> None:
    orphans = [broker.worker(number) for number in range(2)]
    for orphan in orphans:
        os.kill(orphan, signal.SIGSTOP)
    try:
        broker.kill_supervisor()
        broker.start()
        assert not any(broker.worker(number) in orphans for number in range(2))
    finally:
        for orphan in orphans:
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
    assert broker.log_text.count("of a supervisor that is gone does not stop, and is ended") == 2
    assert broker.stop() == 0


async def test_stores_stay_where_they_are_for_any_number_of_workers(make_broker: MakeBroker) -> None:
    broker = make_broker(workers=3, lease_s=LEASE_S).start()
    async with traffic(broker) as flowing:
        for workers in (1, 2, 4):
            assert broker.stop() == 0
            broker.settings["workers"] = workers
            broker.start()
            await flowing.flow()
    assert broker.stop() == 0


async def test_everything_is_there_after_all_processes_are_killed(broker: BrokerProcess) -> None:
    async with traffic(broker) as flowing:
        broker.kill()
        broker.start()
        await flowing.flow()
    assert broker.stop() == 0


def test_a_second_serve_on_the_same_directory_is_refused(
    broker: BrokerProcess, make_broker: MakeBroker
) -> None:
    for workers in (1, 2):
        second = make_broker(workers=workers)
        with pytest.raises(RuntimeError, match=f"{broker.data} is in use by process {broker.pid}; stop it"):
            second.start()
    assert broker.stop() == 0


def test_a_worker_that_cannot_start_ends_the_whole_with_the_reason(
    make_broker: MakeBroker, tmp_path: Path
) -> None:
    (tmp_path / "data" / "stores").mkdir(parents=True)
    (tmp_path / "data" / "stores" / "1").write_text("in the way")
    with pytest.raises(RuntimeError, match=r"worker 1: .*stores/1"):
        make_broker(workers=2).start()
