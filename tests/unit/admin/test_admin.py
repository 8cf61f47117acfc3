"""The admin API: statuses, bodies and effects, whichever broker is called."""

from __future__ import annotations

import pytest

from tests.harness.admin import CLASSIC, ORDERS, Admin
from tests.harness.cluster import Brokers


@pytest.fixture(
    autouse=True,
    params=[pytest.param(count, marks=pytest.mark.brokers(count=count), id=f"{count}") for count in (1, 2)],
)
def each_count() -> None:
    """Run each test on one broker, and on two that are called in turn."""


def test_a_topic_is_created_once_listed_and_deleted(orders: Admin) -> None:
    again = orders("PUT", ORDERS)
    assert again.status == 409
    assert "exists" in again.json["reason"]
    assert orders("GET", "/admin/v2/scalable/public/default").json == ["topic://public/default/orders"]
    assert orders("DELETE", ORDERS).status == 204
    assert orders("GET", "/admin/v2/scalable/public/default").json == []
    assert orders("GET", ORDERS).status == 404
    assert orders("DELETE", ORDERS).status == 404


def test_metadata_has_pulsars_names(orders: Admin) -> None:
    answer = orders("GET", ORDERS)
    assert answer.headers["content-type"] == "application/json"
    metadata = answer.json
    assert metadata["epoch"] == 0
    assert metadata["nextSegmentId"] == 2
    assert metadata["properties"] == {"colour": "red"}
    first = metadata["segments"]["0"]
    assert first["hashRange"] == {"start": 0, "end": 0x7FFF}
    assert (first["segmentId"], first["state"], first["sealedAtEpoch"]) == (0, "ACTIVE", -1)
    assert first["parentIds"] == first["childIds"] == []


def test_topics_are_filtered_by_properties(orders: Admin) -> None:
    topics = "/admin/v2/scalable/public/default"
    assert orders("GET", f"{topics}?property=colour=red").json == ["topic://public/default/orders"]
    assert orders("GET", f"{topics}?property=colour=blue").json == []
    assert orders("GET", f"{topics}?property=colour=blue&property=colour=red").json == []
    assert orders("GET", f"{topics}?property=colour").status == 412
    assert orders("GET", "/admin/v2/scalable/public/nowhere").status == 404


def test_properties_are_changed_one_by_one_and_removed(orders: Admin) -> None:
    path = f"{ORDERS}/properties"
    assert orders("PUT", path, {"size": "big", "team": "a"}).status == 204
    assert orders("PUT", path, {"size": "small"}).status == 204
    assert orders("DELETE", f"{path}?key=team").status == 204
    shown = {"colour": "red", "size": "small"}
    assert orders("GET", path).json == orders("GET", ORDERS).json["properties"] == shown
    topics = "/admin/v2/scalable/public/default"
    assert orders("GET", f"{topics}?property=size=small").json == ["topic://public/default/orders"]


def test_a_name_may_hold_an_escaped_slash(admin: Admin) -> None:
    path = "/admin/v2/scalable/public/default/a%2Fb%20c"
    assert admin("PUT", path).status == 204
    assert admin("GET", path).status == 200
    assert admin("GET", "/admin/v2/scalable/public/default").json == ["topic://public/default/a/b c"]


def test_split_merge_and_rebucket_change_the_layout(orders: Admin) -> None:
    assert orders("POST", f"{ORDERS}/split/0").status == 204
    assert orders("POST", f"{ORDERS}/split/1?parts=4").status == 204
    assert orders("POST", f"{ORDERS}/split/2?points=0x1000,8192").status == 204
    assert orders("POST", f"{ORDERS}/merge/4/5/6").status == 204
    assert orders("POST", f"{ORDERS}/rebucket/7?bucketCount=8").status == 204
    segments = orders("GET", ORDERS).json["segments"]
    active = sorted(
        (s["hashRange"]["start"], s["hashRange"]["end"]) for s in segments.values() if s["state"] == "ACTIVE"
    )
    assert active == [
        (0x0000, 0x0FFF),
        (0x1000, 0x1FFF),
        (0x2000, 0x3FFF),
        (0x4000, 0x7FFF),
        (0x8000, 0xDFFF),
        (0xE000, 0xFFFF),
    ]
    newest = max(segments.values(), key=lambda segment: int(segment["segmentId"]))
    assert len(newest["entryBucketSplits"]) == 7


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/split/9", 404, "no segment 9"),
        ("/split/x", 412, "whole number"),
        ("/split/0?points=1&parts=2", 412, "not both"),
        ("/split/0?points=70000", 412, "ascend"),
        ("/split/0?points=1&byTraffic=true", 412, "not both"),
        ("/split/0?byTraffic=true", 409, "traffic of segment 0 is not known"),
        ("/split/9?byTraffic=true", 404, "no segment 9"),
        ("/merge/0", 412, "two or more"),
        ("/merge/0/a", 412, "whole number"),
        ("/merge/0/9", 404, "no segment 9"),
        ("/rebucket/0", 412, "bucketCount or boundaries"),
        ("/rebucket/0?bucketCount=100000", 412, ""),
        ("/rebucket/0?bucketCount=100000&byTraffic=true", 412, ""),
        ("/rebucket/0?boundaries=99&byTraffic=true", 412, "give bucketCount"),
        ("/rebucket/0?bucketCount=4&byTraffic=true", 409, "traffic of segment 0 is not known"),
    ],
)
def test_a_layout_change_that_cannot_be_is_refused(orders: Admin, path: str, status: int, text: str) -> None:
    answer = orders("POST", ORDERS + path)
    assert answer.status == status
    assert text in answer.json["reason"]


def test_a_sealed_segment_cannot_be_split_again(orders: Admin) -> None:
    assert orders("POST", f"{ORDERS}/split/0").status == 204
    again = orders("POST", f"{ORDERS}/split/0")
    assert again.status == 412
    assert "sealed already" in again.json["reason"]


def test_segments_that_do_not_touch_are_not_merged(orders: Admin) -> None:
    assert orders("POST", f"{ORDERS}/split/0").status == 204
    assert orders("POST", f"{ORDERS}/merge/1/2").status == 412


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/stats"),
        ("GET", "/why"),
        ("POST", "/split/0"),
        ("POST", "/merge/0/1"),
        ("PUT", "/subscriptions/s"),
        ("DELETE", "/subscriptions/s"),
        ("POST", "/subscriptions/s/skip-all"),
        ("GET", "/autoScalePolicy"),
    ],
)
def test_an_unknown_topic_is_404_everywhere(admin: Admin, method: str, path: str) -> None:
    answer = admin(method, f"/admin/v2/scalable/public/default/unknown{path}")
    assert answer.status == 404
    assert "unknown" in answer.json["reason"]


def test_subscriptions_come_and_go(orders: Admin) -> None:
    sub = f"{ORDERS}/subscriptions/billing"
    assert orders("POST", f"{sub}/skip-all").status == 404
    assert orders("PUT", sub).status == 204
    assert orders("PUT", f"{sub}?type=CIRCLE").status == 412
    stats = orders("GET", f"{ORDERS}/stats").json
    assert stats["subscriptions"]["billing"]["consumerCount"] == 0
    assert stats["subscriptions"]["billing"]["type"] == "STREAM"
    assert (stats["totalSegments"], stats["activeSegments"], stats["sealedSegments"]) == (2, 2, 0)
    assert stats["segments"]["0"]["name"] == "segment://public/default/orders/0000-7fff-0"
    assert orders("POST", f"{sub}/seek?timestamp=0").status == 204
    assert orders("POST", f"{sub}/seek").status == 412
    assert orders("POST", f"{sub}/skip-all").status == 204
    assert orders("DELETE", sub).status == 204
    assert orders("DELETE", sub).status == 404


def test_auto_scale_policies_are_kept_and_checked(orders: Admin) -> None:
    path = f"{ORDERS}/autoScalePolicy"
    assert orders("GET", path).status == 204
    assert orders("POST", path, {"maxSegments": 8, "minSegments": None}).status == 204
    assert orders("GET", path).json == {"maxSegments": 8}
    assert orders("POST", path, {"maxSegments": 0}).status == 412
    assert orders("POST", path, {"colour": 1}).status == 412
    assert orders("DELETE", path).status == 204
    assert orders("GET", path).status == 204
    namespace = "/admin/v2/namespaces/public/default/scalableTopicAutoScalePolicy"
    assert orders("POST", namespace, {"minSegments": 65}).status == 412
    assert orders("POST", namespace, {"minSegments": 3}).status == 204
    assert orders("GET", namespace).json == {"minSegments": 3}
    assert orders("DELETE", namespace).status == 204


def test_why_explains_itself(orders: Admin) -> None:
    answer = orders("GET", f"{ORDERS}/why").json
    assert answer["topic"] == "topic://public/default/orders"
    assert "decisions" in answer


def test_tenants_and_namespaces(admin: Admin) -> None:
    assert admin("GET", "/admin/v2/clusters").json == ["standalone"]
    cluster = admin("GET", "/admin/v2/clusters/standalone").json
    assert cluster["brokerServiceUrl"].startswith("pulsar://broker")
    assert admin("GET", "/admin/v2/clusters/other").status == 404
    assert admin("GET", "/admin/v2/tenants").json == ["public"]
    assert admin("PUT", "/admin/v2/tenants/acme", {"allowedClusters": ["mars"]}).status == 412
    assert admin("PUT", "/admin/v2/tenants/acme").status == 204
    assert admin("PUT", "/admin/v2/tenants/acme").status == 409
    assert admin("GET", "/admin/v2/tenants/acme").json == {
        "adminRoles": [],
        "allowedClusters": ["standalone"],
    }
    assert admin("PUT", "/admin/v2/namespaces/nobody/ns").status == 404
    assert admin("PUT", "/admin/v2/namespaces/acme/ns").status == 204
    assert admin("PUT", "/admin/v2/namespaces/acme/ns").status == 409
    assert admin("GET", "/admin/v2/namespaces/acme").json == ["acme/ns"]
    assert admin("GET", "/admin/v2/namespaces/acme/ns").json["bundles"]["numBundles"] == 1
    assert admin("DELETE", "/admin/v2/tenants/acme").status == 409
    assert admin("PUT", "/admin/v2/scalable/acme/ns/t").status == 204
    assert admin("DELETE", "/admin/v2/namespaces/acme/ns").status == 409
    assert admin("DELETE", "/admin/v2/namespaces/acme/ns?force=true").status == 204
    assert admin("DELETE", "/admin/v2/tenants/acme").status == 204
    assert admin("GET", "/admin/v2/tenants/acme").status == 404


@pytest.mark.parametrize(
    "policy",
    [
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": 0},
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": -1},
        {"retentionTimeInMinutes": -2, "retentionSizeInMB": -1},
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": "much"},
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1e308},
        {"retentionTimeInMinutes": 1e308, "retentionSizeInMB": -1},
        {"retentionTimeInMinutes": True, "retentionSizeInMB": 10},
        17,
    ],
)
def test_a_meaningless_retention_is_refused(admin: Admin, policy: object) -> None:
    assert admin("POST", "/admin/v2/namespaces/public/default/retention", policy).status == 412
    assert admin("PUT", "/admin/v2/namespaces/public/new", {"retention_policies": policy}).status == 412
    assert admin("GET", "/admin/v2/namespaces/public/default/retention").status == 204


@pytest.mark.parametrize("limits", [(0, 0), (-1, -1), (-1, 100), (10, -1), (10, None), (None, 0)])
def test_a_retention_may_have_either_limit_both_or_none(
    admin: Admin, limits: tuple[int | None, int | None]
) -> None:
    policy = dict(zip(("retentionTimeInMinutes", "retentionSizeInMB"), limits, strict=True))
    assert admin("POST", "/admin/v2/namespaces/public/default/retention", policy).status == 204


def test_namespace_policies_are_kept_as_given(admin: Admin) -> None:
    path = "/admin/v2/namespaces/public/default/retention"
    policy = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}
    assert admin("GET", path).status == 204
    assert admin("POST", path, policy).status == 204
    assert admin("GET", path).json == policy
    assert admin("GET", "/admin/v2/namespaces/public/default").json["retention_policies"] == policy
    assert admin("DELETE", path).status == 204
    assert admin("GET", "/admin/v2/namespaces/public/default/weather").status == 404


def test_a_classic_topic_comes_and_goes(admin: Admin) -> None:
    assert admin("GET", f"{CLASSIC}/stats").status == 404
    assert admin("PUT", CLASSIC).status == 204
    assert admin("PUT", CLASSIC).status == 409
    name = "persistent://public/default/classic"
    assert admin("GET", "/admin/v2/persistent/public/default").json == [name]
    assert admin("GET", "/admin/v2/namespaces/public/default/topics").json == [name]
    assert admin("GET", f"{CLASSIC}/partitions").json["partitions"] == 0
    assert admin("GET", f"{CLASSIC}/stats").json["msgInCounter"] == 0
    assert admin("GET", f"{CLASSIC}/internalStats").json["numberOfEntries"] == 0
    assert admin("GET", f"{CLASSIC}/lastMessageId").json["entryId"] == -1
    assert admin("POST", f"{CLASSIC}/terminate").json["partitionIndex"] == -1
    assert admin("GET", f"{CLASSIC}/internalStats").json["state"] == "Terminated"
    assert admin("DELETE", CLASSIC).status == 204
    assert admin("DELETE", CLASSIC).status == 404
    assert admin("PUT", "/admin/v2/persistent/public/nowhere/t").status == 404


@pytest.mark.parametrize("classic", ["", "/partitions"])
def test_a_name_is_a_classic_or_a_scalable_topic_s_and_not_both(admin: Admin, classic: str) -> None:
    persistent, scalable = "/admin/v2/persistent/public/default", "/admin/v2/scalable/public/default"
    body = 2 if classic else None
    assert admin("PUT", f"{persistent}/first{classic}", body).status == 204
    refused = admin("PUT", f"{scalable}/first")
    assert refused.status == 409
    assert "migrate" in refused.json["reason"]
    for method, call in (("GET", ""), ("GET", "/why"), ("POST", "/split/0"), ("PUT", "/subscriptions/s")):
        absent = admin(method, f"{scalable}/first{call}")
        assert (absent.status, "classic topic: migrate it" in absent.json["reason"]) == (404, True)
    assert admin("PUT", f"{scalable}/second").status == 204
    assert admin("PUT", f"{persistent}/second{classic}", body).status == 409
    assert admin("DELETE", f"{scalable}/second").status == 204
    assert admin("PUT", f"{persistent}/second{classic}", body).status == 204


def test_a_partitioned_topic_grows(admin: Admin) -> None:
    assert admin("PUT", f"{CLASSIC}/partitions", 3).status == 204
    assert admin("GET", f"{CLASSIC}/partitions").json["partitions"] == 3
    assert len(admin("GET", "/admin/v2/persistent/public/default").json) == 3
    partitioned = admin("GET", "/admin/v2/persistent/public/default/partitioned").json
    assert partitioned == ["persistent://public/default/classic"]
    assert admin("POST", f"{CLASSIC}/partitions", 2).status == 409
    assert admin("POST", f"{CLASSIC}/partitions", 5).status == 204
    stats = admin("GET", f"{CLASSIC}/partitioned-stats").json
    assert stats["metadata"]["partitions"] == 5
    assert len(stats["partitions"]) == 5
    assert admin("POST", f"{CLASSIC}/terminate").status == 405
    assert admin("GET", f"{CLASSIC}-partition-4/internalStats").status == 200
    assert admin("GET", f"{CLASSIC}-partition-5/internalStats").status == 404
    assert admin("PUT", f"{CLASSIC}/partitions", 0).status == 412
    assert admin("DELETE", f"{CLASSIC}/partitions").status == 204
    assert admin("GET", f"{CLASSIC}/partitions").status == 404


def test_classic_subscriptions(admin: Admin) -> None:
    admin("PUT", CLASSIC)
    sub = f"{CLASSIC}/subscription/s"
    assert admin("PUT", sub, "earliest").status == 204
    assert admin("PUT", sub).status == 409
    assert admin("GET", f"{CLASSIC}/subscriptions").json == ["s"]
    for call in ("skip_all", "skip/3", "resetcursor/0", "expireMessages/60"):
        assert admin("POST", f"{sub}/{call}").status == 204
    assert admin("POST", f"{sub}/resetcursor", {"ledgerId": 0, "entryId": 0}).status == 204
    assert admin("POST", f"{sub}/resetcursor", {"page": 3}).status == 412
    assert admin("POST", f"{CLASSIC}/subscription/unknown/skip_all").status == 404
    assert admin("DELETE", sub).status == 204
    assert admin("DELETE", sub).status == 404
    assert admin("DELETE", CLASSIC).status == 204


async def test_consumers_and_producers_keep_a_classic_topic_and_idle_subscriptions_do_not(
    brokers: Brokers,
) -> None:
    admin, topic = Admin(brokers), "persistent://public/default/classic"
    async with brokers.client() as client:
        consumer = await client.subscribe_queue(topic, "s")
        refused = await admin.ask("DELETE", CLASSIC)
        assert (refused.status, "consumers of s" in refused.json["reason"]) == (412, True)
        await consumer.close()
        producer = await client.create_producer(topic)
        await producer.send(b"tea")
        assert (await admin.ask("DELETE", CLASSIC)).status == 412
        await producer.close()
        assert (await admin.ask("DELETE", CLASSIC)).status == 204


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("PATCH", "/admin/v2/clusters", None, 405),
        ("PUT", ORDERS, ["not", "properties"], 400),
        ("PUT", "/admin/v2/scalable/public/default/x?numInitialSegments=0", None, 412),
        ("PUT", "/admin/v2/scalable/public/default/x?numInitialSegments=many", None, 412),
        ("PUT", "/admin/v2/scalable/pub%20lic/default/x", None, 412),
        ("PUT", "/admin/v2/scalable/public/default/%20x", None, 412),
        ("PUT", "/admin/v2/scalable/public/default/%ff", None, 412),
        ("DELETE", f"{ORDERS}?force=perhaps", None, 412),
        ("POST", f"{ORDERS}/split/0?points={2**80}", None, 412),
        ("POST", f"{ORDERS}/split/{-(2**80)}", None, 412),
        ("POST", f"{ORDERS}/merge/0/{2**80}", None, 412),
        ("POST", f"{ORDERS}/merge/0/one", None, 412),
        ("POST", f"{ORDERS}/rebucket/0?boundaries={2**80}", None, 412),
        ("POST", f"{ORDERS}/subscriptions/s/seek?timestamp={2**80}", None, 412),
        ("POST", "/admin/v2/namespaces/public/default/retention", b"[" * 100_000, 400),
        ("PUT", "/admin/v2/scalable/public/default/x", b'{"colour": "red"', 400),
        ("PUT", "/admin/v2/scalable/public/default/x", b"\xff", 400),
        ("PUT", "/admin/v2/scalable/public/default/x", b" " * (2**20 + 1), 400),
        ("POST", f"{ORDERS}/autoScalePolicy", b"maxSegments=9", 400),
    ],
)
def test_bad_calls_are_refused_with_a_reason(
    orders: Admin, method: str, path: str, body: object, status: int
) -> None:
    answer = orders(method, path, body)
    assert answer.status == status
    assert answer.json["reason"]
