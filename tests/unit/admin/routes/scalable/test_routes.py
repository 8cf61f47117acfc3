"""Every path and verb of `/admin/v2/scalable` and `/admin/v2/segments`, with its statuses.

The topic has the segments 0 (0000-7fff, sealed by a split), 1 (8000-ffff), 2 (0000-3fff) and 3 (4000-7fff),
and the subscription `known`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.admin.http.answers import status_of
from anabranch.admin.http.calls import CallRoute
from anabranch.admin.routes.scalable import segments
from anabranch.admin.routes.scalable import subscriptions as scalable_subscriptions
from anabranch.admin.routes.scalable import topics as scalable
from anabranch.errors import (
    AnabranchError,
    NotConnectedError,
    TooManyRequestsError,
    UnsupportedFeatureError,
)
from anabranch.model.names import Place, TopicName
from tests.harness.admin import Admin
from tests.harness.cluster import Brokers

NAMESPACE = "/admin/v2/scalable/public/default"
TOPIC = f"{NAMESPACE}/orders"
SEGMENTS = "/admin/v2/segments/public/default/orders"
SEALED, ACTIVE, NEVER = "0000-7fff-0", "8000-ffff-1", "0000-ffff-9"

# Verb, path, body, status, and the status without the topic (None: not tested).
TABLE: list[tuple[str, str, object, int, int | None]] = [
    ("GET", NAMESPACE, None, 200, None),
    ("GET", f"{NAMESPACE}?property=colour=red", None, 200, None),
    ("GET", f"{NAMESPACE}?property=colour", None, 412, None),
    ("GET", "/admin/v2/scalable/public/nowhere", None, 404, None),
    ("PUT", TOPIC, None, 409, 204),
    ("PUT", f"{NAMESPACE}/new?numInitialSegments=3", {"colour": "red"}, 204, None),
    ("PUT", f"{NAMESPACE}/new?numInitialSegments=0", None, 412, None),
    ("PUT", f"{NAMESPACE}/new?numInitialSegments=65537", None, 412, None),
    ("PUT", f"{NAMESPACE}/new?numInitialSegments=1024", None, 204, None),
    ("PUT", f"{NAMESPACE}/new?numInitialSegments=1025", None, 412, None),
    ("PUT", f"{NAMESPACE}/%20new", None, 412, None),
    ("PUT", f"{NAMESPACE}/new%20", None, 412, None),
    ("PUT", f"{NAMESPACE}/new-partition-0", None, 412, None),
    ("PUT", f"{NAMESPACE}/new", {"colour": 1}, 400, None),
    ("PUT", "/admin/v2/scalable/public/nowhere/new", None, 404, None),
    ("GET", TOPIC, None, 200, 404),
    ("DELETE", TOPIC, None, 204, 404),
    ("DELETE", f"{TOPIC}?force=true", None, 204, 404),
    ("GET", f"{TOPIC}/stats", None, 200, 404),
    ("GET", f"{TOPIC}/segments/1/stats", None, 200, 404),
    ("GET", f"{TOPIC}/segments/9/stats", None, 404, 404),
    ("GET", f"{TOPIC}/segments/x/stats", None, 412, None),
    ("GET", f"{TOPIC}/why", None, 200, 404),
    ("POST", f"{TOPIC}/migrate", None, 409, 404),
    ("POST", f"{TOPIC}/split/1", None, 204, 404),
    ("POST", f"{TOPIC}/split/1?parts=4", None, 204, 404),
    ("POST", f"{TOPIC}/split/1?points=36864,0xa000", None, 204, 404),
    ("POST", f"{TOPIC}/split/1?points=5", None, 412, 404),
    ("POST", f"{TOPIC}/split/1?parts=1", None, 412, 404),
    ("POST", f"{TOPIC}/split/1?parts=1024", None, 204, 404),
    ("POST", f"{TOPIC}/split/1?parts=1025", None, 412, 404),
    ("POST", f"{TOPIC}/split/1?parts=32769", None, 412, 404),
    ("POST", f"{TOPIC}/split/0", None, 412, 404),
    ("POST", f"{TOPIC}/split/9", None, 404, 404),
    ("POST", f"{TOPIC}/split/x", None, 412, None),
    ("POST", f"{TOPIC}/merge/2/3", None, 204, 404),
    ("POST", f"{TOPIC}/merge/2/3/1", None, 204, 404),
    ("POST", f"{TOPIC}/merge/2/1", None, 412, 404),
    ("POST", f"{TOPIC}/merge/0/1", None, 412, 404),
    ("POST", f"{TOPIC}/merge/2/9", None, 404, 404),
    ("POST", f"{TOPIC}/rebucket/1?bucketCount=8", None, 204, 404),
    ("POST", f"{TOPIC}/rebucket/1?boundaries=100,40000", None, 204, 404),
    ("POST", f"{TOPIC}/rebucket/1?boundaries=100,100", None, 412, 404),
    ("POST", f"{TOPIC}/rebucket/1", None, 412, None),
    ("POST", f"{TOPIC}/rebucket/0?bucketCount=8", None, 412, 404),
    ("POST", f"{TOPIC}/rebucket/9?bucketCount=8", None, 404, 404),
    ("PUT", f"{TOPIC}/subscriptions/new", None, 204, 404),
    ("PUT", f"{TOPIC}/subscriptions/new?type=QUEUE", None, 204, 404),
    ("PUT", f"{TOPIC}/subscriptions/known", None, 204, 404),
    ("PUT", f"{TOPIC}/subscriptions/known?type=CHECKPOINT", None, 409, 404),
    ("PUT", f"{TOPIC}/subscriptions/new?type=OTHER", None, 412, None),
    ("DELETE", f"{TOPIC}/subscriptions/known", None, 204, 404),
    ("DELETE", f"{TOPIC}/subscriptions/new", None, 404, 404),
    ("POST", f"{TOPIC}/subscriptions/known/seek?timestamp=1", None, 204, 404),
    ("POST", f"{TOPIC}/subscriptions/known/seek", None, 412, None),
    ("POST", f"{TOPIC}/subscriptions/new/seek?timestamp=1", None, 404, 404),
    ("POST", f"{TOPIC}/subscriptions/known/skip-all", None, 204, 404),
    ("POST", f"{TOPIC}/subscriptions/new/skip-all", None, 404, 404),
    ("GET", f"{TOPIC}/properties", None, 200, 404),
    ("PUT", f"{TOPIC}/properties", {"colour": "blue"}, 204, 404),
    ("PUT", f"{TOPIC}/properties", None, 204, 404),
    ("PUT", f"{TOPIC}/properties", {"colour": None}, 400, None),
    ("PUT", f"{TOPIC}/properties", ["colour"], 400, None),
    ("DELETE", f"{TOPIC}/properties?key=colour", None, 204, 404),
    ("DELETE", f"{TOPIC}/properties?key=unknown", None, 204, 404),
    ("DELETE", f"{TOPIC}/properties", None, 412, None),
    ("GET", f"{TOPIC}/autoScalePolicy", None, 204, 404),
    ("POST", f"{TOPIC}/autoScalePolicy", {"maxSegments": 9}, 204, 404),
    ("POST", f"{TOPIC}/autoScalePolicy", {"maxSegments": -1}, 412, None),
    ("DELETE", f"{TOPIC}/autoScalePolicy", None, 204, 404),
    ("PUT", f"{SEGMENTS}/{ACTIVE}", None, 204, 404),
    ("PUT", f"{SEGMENTS}/{SEALED}", ["known", "new"], 204, 404),
    ("PUT", f"{SEGMENTS}/{NEVER}", None, 409, 404),
    ("PUT", f"{SEGMENTS}/{ACTIVE}", {"known": 1}, 400, None),
    ("PUT", f"{SEGMENTS}/nonsense", None, 412, None),
    ("POST", f"{SEGMENTS}/{SEALED}/terminate", None, 204, 404),
    ("POST", f"{SEGMENTS}/{ACTIVE}/terminate", None, 409, 404),
    ("POST", f"{SEGMENTS}/{NEVER}/terminate", None, 404, 404),
    ("POST", f"{SEGMENTS}/0000-3fff-0/terminate", None, 404, 404),
    ("DELETE", f"{SEGMENTS}/{ACTIVE}", None, 409, 204),
    ("DELETE", f"{SEGMENTS}/{SEALED}?force=true", None, 409, 204),
    ("DELETE", f"{SEGMENTS}/{NEVER}", None, 204, 204),
    ("PUT", f"{SEGMENTS}/{ACTIVE}/subscription/new", None, 204, 404),
    ("PUT", f"{SEGMENTS}/{ACTIVE}/subscription/known", None, 204, 404),
    ("PUT", f"{SEGMENTS}/{NEVER}/subscription/known", None, 404, 404),
    ("DELETE", f"{SEGMENTS}/{ACTIVE}/subscription/known", None, 204, 404),
    ("DELETE", f"{SEGMENTS}/{ACTIVE}/subscription/new", None, 204, 404),
    ("GET", f"{SEGMENTS}/{ACTIVE}/subscription/known/backlog", None, 200, 404),
    ("GET", f"{SEGMENTS}/{ACTIVE}/subscription/new/backlog", None, 404, 404),
    ("GET", f"{SEGMENTS}/{NEVER}/subscription/known/backlog", None, 404, 404),
    ("POST", f"{SEGMENTS}/{ACTIVE}/subscription/known/seek?timestamp=1", None, 204, 404),
    ("POST", f"{SEGMENTS}/{ACTIVE}/subscription/known/seek", None, 412, None),
    ("POST", f"{SEGMENTS}/{ACTIVE}/subscription/new/seek?timestamp=1", None, 404, 404),
    ("POST", f"{SEGMENTS}/{ACTIVE}/subscription/known/skip-all", None, 204, 404),
    ("POST", f"{SEGMENTS}/{ACTIVE}/subscription/new/skip-all", None, 404, 404),
]


def make_topic(admin: Admin) -> None:
    assert admin("PUT", f"{TOPIC}?numInitialSegments=2", {"colour": "red"}).status == 204
    assert admin("PUT", f"{TOPIC}/subscriptions/known").status == 204
    assert admin("POST", f"{TOPIC}/split/0").status == 204


@pytest.fixture
def topic(admin: Admin) -> None:
    """The topic of all tests."""
    make_topic(admin)


@pytest.mark.brokers(count=2)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("method", "path", "body", "status", "_"), TABLE)
def test_answers_of_any_broker(
    admin: Admin, method: str, path: str, body: object, status: int, _: object, first: int
) -> None:
    make_topic(admin)
    if first:
        admin("GET", "/status.html")
    assert admin(method, path, body).status == status


@pytest.mark.parametrize(("method", "path", "body", "status", "_"), TABLE)
def test_answers(admin: Admin, method: str, path: str, body: object, status: int, _: object) -> None:
    make_topic(admin)
    answer = admin(method, path, body)
    assert answer.status == status, answer.body
    if status >= 400:
        assert answer.json["reason"]
    for query in ("authoritative=true",):
        # Pulsar's clients mark redirected calls with this option; it has no effect here.
        more = "&" if "?" in path else "?"
        assert admin(method, f"{path}{more}{query}", body).status != 500


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [(method, path, body, absent) for method, path, body, _, absent in TABLE if absent is not None],
)
def test_answers_without_the_topic(admin: Admin, method: str, path: str, body: object, status: int) -> None:
    assert admin(method, path, body).status == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TooManyRequestsError("wait"), 429),
        (UnsupportedFeatureError("not yet"), 501),
        (NotConnectedError("try again"), 503),
        (AnabranchError("no idea"), 500),
        (ValueError("a bug"), 500),
    ],
)
def test_the_status_of_an_error_says_whether_to_try_again(error: Exception, status: int) -> None:
    assert status_of(error) == status


def test_the_table_leaves_no_route_out(admin: Admin) -> None:
    served = (scalable, scalable_subscriptions, segments)
    for endpoint in [endpoint for module in served for endpoint in module.ENDPOINTS]:
        if "/namespaces/" in endpoint.path:
            continue
        tried = [path.partition("?")[0] for verb, path, *_ in TABLE if verb == endpoint.method]
        matching = CallRoute(endpoint).path_regex
        assert any(matching.match(path) for path in tried), f"{endpoint.method} {endpoint.path}"


@pytest.mark.usefixtures("topic")
async def test_stats_contain_the_owner_of_each_segment_and_the_state_of_each_subscription(
    admin: Admin,
) -> None:
    whole: dict[str, Any] = {}
    async with admin.brokers.client() as client:
        producer = await client.create_producer("orders")
        await producer.send_many([b"v"] * 100, keys=[f"key-{n}" for n in range(100)])
        consumer = await client.subscribe_stream("orders", "known", name="me")
        await asyncio.sleep(1)
        stats = await admin.ask("GET", f"{TOPIC}/stats", None)
        whole.update(stats.json)
        await consumer.close()
    assert (whole["totalSegments"], whole["activeSegments"], whole["sealedSegments"]) == (4, 3, 1)
    for segment in whole["segments"].values():
        assert segment["ownerBroker"] == "pulsar://broker-0:6650"
        assert segment["bucketCount"] >= 1
        assert {"msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut", "storageSize"} < set(segment)
    for name in ("msgRateIn", "bytesRateOut", "storageSize", "backlogMessages"):
        assert whole[name] == pytest.approx(sum(part[name] for part in whole["segments"].values()))
    known = whole["subscriptions"]["known"]
    assert known["type"] == "STREAM"
    assert known["consumerCount"] == 1
    assert known["consumers"]["me"]["connected"] is True
    assert known["drained"] == [0]
    assert known["waiting"] == {}
    assert sum(known["backlogBySegment"].values()) == known["backlog"] == whole["backlogMessages"] == 100
    assert whole["autoScalePolicy"]["maxSegments"] == 64
    segment = (await admin.ask("GET", f"{TOPIC}/segments/1/stats")).json["subscriptions"]["known"]
    assert segment["backlogMessages"] == known["backlogBySegment"]["1"] > segment["msgBacklog"]
    backlog = await admin.ask("GET", f"{SEGMENTS}/{ACTIVE}/subscription/known/backlog")
    assert backlog.json == segment["msgBacklog"], "entries, as in Pulsar"


@pytest.mark.brokers(count=2)
def test_ranges_and_buckets_are_cut_where_the_call_says(admin: Admin) -> None:
    make_topic(admin)
    calls = ("split/1?parts=4", "split/2?points=1,0x3fff", "rebucket/3?boundaries=100,0x9c40")
    for call in calls:
        assert admin("POST", f"{TOPIC}/{call}").status == 204
    segments = admin("GET", TOPIC).json["segments"].values()
    active = {s["hashRange"]["start"]: s for s in segments if s["state"] == "ACTIVE"}
    assert sorted(active) == [0, 1, 0x3FFF, 0x4000, 0x8000, 0xA000, 0xC000, 0xE000]
    assert active[0x4000]["entryBucketSplits"] == [100, 40000]


async def publish_twice(brokers: Brokers) -> int:
    """Publish 50 messages twice, a minute apart; return a wall time between the two."""
    async with brokers.client(0) as client:
        producer = await client.create_producer("orders")
        for _ in range(2):
            await asyncio.sleep(60)
            await producer.send_many([b"v"] * 50, keys=[f"key-{n}" for n in range(50)])
    return brokers.clock.wall_ms() - 30_000


@pytest.mark.brokers(count=2)
def test_a_subscription_has_the_kind_and_the_time_that_the_call_says(admin: Admin) -> None:
    make_topic(admin)
    for kind in ("QUEUE", "CHECKPOINT"):
        assert admin("PUT", f"{TOPIC}/subscriptions/{kind}?type={kind}").status == 204

    def known() -> Any:
        return admin("GET", f"{TOPIC}/stats").json["subscriptions"]

    assert {name: sub["type"] for name, sub in known().items()} == {
        "known": "STREAM",
        "QUEUE": "QUEUE",
        "CHECKPOINT": "CHECKPOINT",
    }

    between_ms = admin.loop.run(publish_twice(admin.brokers))
    moved = f"{TOPIC}/subscriptions/known"
    for call, left in ((f"seek?timestamp={between_ms}", 50), ("seek?timestamp=0", 100), ("skip-all", 0)):
        assert admin("POST", f"{moved}/{call}").status == 204
        assert known()["known"]["backlog"] == left
        assert known()["QUEUE"]["backlog"] == 100


@pytest.mark.brokers(count=2)
@pytest.mark.usefixtures("topic")
async def test_why_names_the_ancestor_and_the_consumer_that_are_waited_for(admin: Admin) -> None:
    async with admin.brokers.client(0) as client:
        producer = await client.create_producer("orders")
        await producer.send_many([b"v"] * 100, keys=[f"key-{n}" for n in range(100)])
        consumer = await client.subscribe_stream("orders", "known", name="me")
        await consumer.receive_many(100, timeout=5)
        assert (await admin.ask("POST", f"{TOPIC}/split/1", None)).status == 204
        await asyncio.sleep(1)
        for number in (0, 1):
            answer = (await admin.ask("GET", f"{TOPIC}/why", at=number)).json
            waiting = answer["subscriptions"]["known"]["waiting"]
            assert waiting.keys() == {"4", "5"}
            for (blocker,) in waiting.values():
                assert (blocker["segment"], blocker["consumers"]) == (1, ["me"])
            assert answer["decisions"][-1]["reason"]
        await consumer.close()


def test_a_subscription_of_one_segment_is_one_of_the_topic(admin: Admin) -> None:
    make_topic(admin)
    assert admin("PUT", f"{SEGMENTS}/{SEALED}", ["first", "known"]).status == 204
    assert admin("PUT", f"{SEGMENTS}/{ACTIVE}/subscription/second").status == 204
    known = admin("GET", f"{TOPIC}/stats").json["subscriptions"]
    assert {name: sub["type"] for name, sub in known.items()} == dict.fromkeys(
        ("known", "first", "second"), "STREAM"
    )


def test_a_subscription_that_only_a_segment_knows_is_moved_and_removed_there(admin: Admin) -> None:
    make_topic(admin)
    place = Place(TopicName.parse(f"segment://public/default/orders/{ACTIVE}"), 0)
    term = admin("GET", f"{TOPIC}/why").json["term"]
    admin.loop.run(admin.broker.segments.create_subscription(place, "stray", "earliest", term))
    stray = f"{SEGMENTS}/{ACTIVE}/subscription/stray"
    for call in ("seek?timestamp=1", "skip-all"):
        assert admin("POST", f"{stray}/{call}").status == 204
    assert admin("GET", f"{stray}/backlog").json == 0
    assert admin("DELETE", stray).status == 204
    assert admin("GET", f"{stray}/backlog").status == 404


@pytest.mark.usefixtures("topic")
async def test_a_subscription_of_the_topic_is_moved_as_a_whole(admin: Admin) -> None:
    async with admin.brokers.client() as client:
        producer = await client.create_producer("orders")
        await producer.send_many([b"v"] * 100, keys=[f"key-{n}" for n in range(100)])
    later_ms = admin.brokers.clock.wall_ms() + 1000
    for call, left in ((f"seek?timestamp={later_ms}", 0), ("seek?timestamp=1", 100), ("skip-all", 0)):
        assert (await admin.ask("POST", f"{SEGMENTS}/{ACTIVE}/subscription/known/{call}")).status == 204
        assert (await admin.ask("GET", f"{TOPIC}/stats")).json["subscriptions"]["known"]["backlog"] == left
    assert (await admin.ask("DELETE", f"{SEGMENTS}/{ACTIVE}/subscription/known")).status == 204
    assert (await admin.ask("GET", f"{TOPIC}/stats")).json["subscriptions"] == {}


@pytest.mark.brokers(count=2)
@pytest.mark.parametrize("kind", ["queue", "stream"])
@pytest.mark.usefixtures("topic")
async def test_a_subscription_or_topic_with_consumers_is_deleted_only_by_force(
    admin: Admin, kind: str
) -> None:
    async with admin.brokers.client() as client:
        subscribe = client.subscribe_queue if kind == "queue" else client.subscribe_stream
        consumer = await subscribe("orders", "used", initial_position="earliest")
        segment = f"{SEGMENTS}/{ACTIVE}/subscription/used"
        for path in (f"{TOPIC}/subscriptions/used", segment, TOPIC):
            answer = await admin.ask("DELETE", path, None)
            assert (answer.status, "consumers" in answer.json["reason"]) == (412, True)
        stats = await admin.ask("GET", f"{TOPIC}/stats", None)
        assert "used" in stats.json["subscriptions"]
        forced = await admin.ask("DELETE", f"{TOPIC}/subscriptions/used?force=true", None)
        assert forced.status == 204
        await consumer.close()
    again = await admin.ask("DELETE", f"{TOPIC}/subscriptions/used", None)
    assert again.status in (204, 404)
    async with admin.brokers.client() as client:
        subscribe = client.subscribe_queue if kind == "queue" else client.subscribe_stream
        consumer = await subscribe("orders", "used", initial_position="earliest")
        assert (await admin.ask("DELETE", f"{TOPIC}?force=true", None)).status == 204
        assert (await admin.ask("GET", TOPIC, None)).status == 404
        await consumer.close()
