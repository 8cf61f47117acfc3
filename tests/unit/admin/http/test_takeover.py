"""Admin calls whose leader stops or whose answer is lost: each is answered and carried out once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from anabranch.admin.http.calls import TAKEOVER_S
from anabranch.broker.browsing.logs import Logs
from anabranch.broker.cluster.peers import CONNECT_S
from anabranch.controller.decide.operation import LayoutVersion
from anabranch.errors import NotConnectedError
from anabranch.metadata.records import TopicRecord
from anabranch.model.names import Place, TopicName
from anabranch.protocol.pb import pulsar_pb2 as pb
from tests.harness.admin import CLASSIC, ORDERS, Admin, AdminAnswer
from tests.harness.cluster import Brokers

TOPIC = TopicName.parse("topic://public/default/orders")
FRESH = [TopicName.parse(f"topic://public/default/fresh-{number}") for number in (0, 3)]
"""Topics that are at home with either broker."""

MIGRATED = TopicName.parse("topic://public/default/classic")
SEGMENT = "/admin/v2/segments/public/default/orders/0000-3fff-0"
DELAYS_MS = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0]
"""How long a call is under way when its leader is lost: from before it is sent to after its answer."""

LEASE_S = 5.0

pytestmark = pytest.mark.brokers(count=2, lease_s=LEASE_S)


class Far:
    """Calls the broker that does not lead the topic."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.admin = Admin(brokers)
        self.leader = brokers.leader_of(TOPIC)
        self.broker = brokers[1 - self.leader]

    async def ask(self, method: str, path: str, body: object = None) -> AdminAnswer:
        return await self.admin.ask(method, path, body, at=self.broker.id)

    async def record(self, name: TopicName = TOPIC) -> TopicRecord | None:
        return await self.broker.records.find(name)


@pytest.fixture
async def far(brokers: Brokers) -> Far:
    """Two brokers, with a topic of four segments, a subscription, and a classic topic."""
    await brokers[0].controllers.create_topic(TOPIC, 4)
    far = Far(brokers)
    for path in (f"{ORDERS}/subscriptions/s", f"{CLASSIC}/partitions", f"{CLASSIC}/subscription/s"):
        assert (await far.ask("PUT", path, 2 if "partitions" in path else None)).status == 204
    return far


class Asked(NamedTuple):
    method: str
    path: str
    body: object = None
    epochs: int = 0
    """By how much the layout has to move on."""


CALLS = [
    Asked("GET", f"{ORDERS}/stats"),
    Asked("GET", f"{ORDERS}/why"),
    Asked("GET", f"{ORDERS}/segments/0/stats"),
    Asked("GET", f"{CLASSIC}/partitioned-stats"),
    *(Asked("PUT", ORDERS.replace("orders", fresh.local), {"colour": "red"}) for fresh in FRESH),
    *(Asked("PUT", CLASSIC.replace("classic", fresh.local)) for fresh in FRESH),
    Asked("POST", f"{ORDERS}/split/0", epochs=1),
    Asked("POST", f"{ORDERS}/split/1?parts=3", epochs=1),
    Asked("POST", f"{ORDERS}/merge/1/0", epochs=1),
    Asked("POST", f"{ORDERS}/rebucket/2?bucketCount=4", epochs=1),
    Asked("POST", f"{ORDERS}/autoScalePolicy", {"maxSegments": 7}),
    Asked("PUT", f"{ORDERS}/subscriptions/new"),
    Asked("POST", f"{ORDERS}/subscriptions/s/skip-all"),
    Asked("DELETE", f"{ORDERS}/subscriptions/s"),
    Asked("DELETE", f"{SEGMENT}/subscription/s"),
    Asked("PUT", f"{SEGMENT}/subscription/new"),
    Asked("DELETE", ORDERS),
    Asked("PUT", f"{CLASSIC}/subscription/new", "earliest"),
    Asked("DELETE", f"{CLASSIC}/subscription/s"),
    Asked("DELETE", f"{CLASSIC}/partitions?force=true"),
    Asked("POST", f"{CLASSIC}/terminate/partitions"),
    Asked("POST", ORDERS.replace("orders", MIGRATED.local) + "/migrate"),
]


@pytest.mark.parametrize("delay_ms", DELAYS_MS)
@pytest.mark.parametrize("asked", CALLS, ids=lambda asked: f"{asked.method} {asked.path[20:]}")
@pytest.mark.parametrize("what", ["answers lost", "leader stopped"])
async def test_a_call_is_answered_and_done_once_whenever_its_leader_is_lost(
    far: Far, asked: Asked, what: str, delay_ms: float
) -> None:
    call = asyncio.get_running_loop().create_task(far.ask(*asked[:3]))
    await asyncio.sleep(delay_ms / 1000)
    if what == "answers lost":
        far.brokers.reset_links()
    else:
        await far.brokers.stop(far.leader)
    answer = await call
    assert answer.status in (200, 204), answer
    record = await far.record()
    if asked.path == ORDERS:
        assert record is None or record.deleted
    else:
        assert record is not None
        assert (record.epoch, record.intent) == (asked.epochs, None)
    for made in filter(None, [await far.record(name) for name in FRESH]):
        assert (made.epoch, made.intent, made.properties) == (0, None, {"colour": "red"})
    if asked.path.endswith("/migrate"):
        record = await far.record(MIGRATED)
        assert record is not None
        assert (record.epoch, record.intent) == (1, None)
        assert list(await far.broker.records.load_subscriptions(MIGRATED)) == ["s"]


async def until(true: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(10.0):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.00001)


async def test_a_change_that_was_under_way_is_answered_when_it_is_made(far: Far) -> None:
    async def begun() -> bool:
        record = await far.record()
        return record is not None and record.intent is not None

    split = asyncio.get_running_loop().create_task(far.ask("POST", f"{ORDERS}/split/0"))
    await until(begun)
    far.brokers.reset_links()
    assert (await split).status == 204
    record = await far.record()
    assert record is not None
    assert (record.epoch, sorted(record.segments)) == (1, [0, 1, 2, 3, 4, 5])
    again = await far.ask("POST", f"{ORDERS}/split/0")
    assert (again.status, "children are 4, 5" in again.json["reason"]) == (412, True)


async def test_a_change_that_another_one_came_before_is_refused_though_it_was_asked_for_again(
    far: Far,
) -> None:
    leader = await far.brokers[far.leader].controllers.lead(TOPIC)
    thirds = asyncio.get_running_loop().create_task(far.ask("POST", f"{ORDERS}/split/0?parts=3"))
    await asyncio.sleep(0)
    far.brokers.reset_links()
    await leader.split(0)
    assert (await thirds).status == 412
    assert len(leader.layout.active) == 5


async def test_a_topic_made_anew_after_a_deletion_whose_answer_was_lost_stays(far: Far) -> None:
    async def deleted() -> bool:
        record = await far.record()
        return record is None or record.deleted

    deletion = asyncio.get_running_loop().create_task(far.ask("DELETE", ORDERS))
    await until(deleted)
    far.brokers.reset_links()
    await far.brokers[far.leader].controllers.create_topic(TOPIC, 1)
    assert (await deletion).status == 204
    assert (await far.ask("GET", f"{ORDERS}/stats")).json["totalSegments"] == 1


@pytest.mark.parametrize("path", [f"{ORDERS}/subscriptions/s", f"{SEGMENT}/subscription/s"])
async def test_a_subscription_made_anew_after_a_deletion_whose_answer_was_lost_stays(
    far: Far, path: str
) -> None:
    async def deleted() -> bool:
        return await far.broker.records.load_subscription(TOPIC, "s") is None

    leader = await far.brokers[far.leader].controllers.lead(TOPIC)
    deletion = asyncio.get_running_loop().create_task(far.ask("DELETE", path))
    await until(deleted)
    far.brokers.reset_links()
    await leader.ensure_subscription("s", "STREAM", "earliest")
    assert (await deletion).status == 204
    assert list(leader.records) == ["s"]


@pytest.mark.parametrize("fresh", FRESH)
async def test_a_topic_deleted_while_its_creation_is_retried_is_not_created_again(
    far: Far, fresh: TopicName
) -> None:
    async def recorded() -> bool:
        return await far.record(fresh) is not None

    path = ORDERS.replace("orders", fresh.local)
    creation = asyncio.get_running_loop().create_task(far.ask("PUT", path))
    await until(recorded)
    far.brokers.reset_links()
    assert (await far.ask("DELETE", path)).status == 204
    assert (await creation).status in (204, 404)
    assert await far.record(fresh) is None


async def test_a_repeated_rebucket_is_counted_once(far: Far) -> None:
    leader = await far.brokers[far.leader].controllers.lead(TOPIC)
    seen = LayoutVersion(leader.record.incarnation, leader.layout.epoch)
    for _ in range(2):
        await leader.rebucket(0, [0x8000], seen)
    assert leader.scaling.tally.rebuckets == 1


async def test_a_change_without_a_leader_fails_in_time_and_says_that_it_may_be_made(far: Far) -> None:
    await far.broker.records.update(TOPIC, lambda record: replace(record, store=7))
    await far.brokers[far.leader].controllers.store_closing(1 - far.broker.id)
    began = far.brokers.loop.time()
    change, read = await asyncio.gather(
        far.ask("POST", f"{ORDERS}/split/0"), far.ask("GET", f"{ORDERS}/stats")
    )
    assert (change.status, read.status) == (503, 503)
    assert LEASE_S < far.brokers.loop.time() - began <= LEASE_S + 3 * TAKEOVER_S
    assert "store 7" in read.json["reason"]
    assert change.json["reason"].startswith(read.json["reason"])
    assert "may have been done" in change.json["reason"]
    assert "may have been done" not in read.json["reason"]


async def test_a_leader_that_does_not_finish_a_handshake_is_asked_again(far: Far) -> None:
    loop = far.brokers.loop
    far.brokers.reset_links()
    await asyncio.sleep(1.0)
    far.brokers.ignored = frozenset({pb.CommandConnect})
    began = loop.time()
    split = loop.create_task(far.ask("POST", f"{ORDERS}/split/0"))
    await asyncio.sleep(1.0)
    far.brokers.ignored = frozenset()
    assert (await split).status == 204
    assert CONNECT_S < loop.time() - began < CONNECT_S + 1.0


async def test_a_call_that_is_not_repeatable_is_made_once(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def skip(self: Logs, place: Place, subscription: str, count: int) -> int:
        asked.append(subscription)
        raise NotConnectedError("the answer is lost")

    monkeypatch.setattr(Logs, "skip", skip)
    answer = await far.ask("POST", f"{CLASSIC}/subscription/s/skip/3")
    assert (answer.status, asked) == (503, ["s"])
    assert "may have been done" in answer.json["reason"]
