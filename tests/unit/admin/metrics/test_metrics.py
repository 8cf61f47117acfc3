"""Metrics for Prometheus: both formats, all workers, and the numbers that PIP-483 and PIP-486 ask for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from anabranch.admin.metrics.scrape import OPEN_MAX, LocalMetrics
from anabranch.admin.metrics.tables import Column, Families, Table, TextPart, label
from anabranch.model.scaling.autoscale import Decision
from anabranch.model.scaling.scale_steps import Keep, Merge, Split
from anabranch.timings import TimeHistogram
from tests.harness.admin import ORDERS, Admin

TOPIC = "topic://public/default/orders"
OPENMETRICS = "application/openmetrics-text; version=1.0.0, text/plain; version=0.0.4; q=0.5"

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]

OF_THE_PIPS = {
    "pulsar_scalable_topic_active_segments": "gauge",
    "pulsar_scalable_topic_auto_splits_total": "counter",
    "pulsar_scalable_topic_auto_merges_total": "counter",
    "pulsar_scalable_topic_split_suppressed_max_segments_total": "counter",
    "pulsar_scalable_topic_merge_suppressed_max_depth_total": "counter",
    "pulsar_scalable_topic_rebucket_rollovers_total": "counter",
    "pulsar_scalable_topic_segment_buckets": "gauge",
    "pulsar_scalable_topic_segment_sharing_consumers": "gauge",
    "pulsar_scalable_topic_segment_bucket_reassignments_total": "counter",
    "pulsar_scalable_topic_segment_buckets_withheld": "gauge",
    "pulsar_scalable_topic_segment_drain_mode": "gauge",
    "pulsar_scalable_topic_segment_entries_in_total": "counter",
    "pulsar_scalable_topic_segment_messages_in_total": "counter",
}


def families(text: str) -> dict[str, Metric]:
    """The families of an exposition, as the parser of `prometheus_client` reads it."""
    headers = [line for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(headers) == len(set(headers)), "one family in one piece"
    openmetrics = text.endswith("# EOF\n")
    parse: Callable[[str], Iterable[Metric]] = parse_openmetrics if openmetrics else parse_text
    found = list(parse(text))
    return {family.name: family for family in found}


def samples_in(text: str) -> Samples:
    found = [sample for family in families(text).values() for sample in family.samples]
    by_labels = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
    assert len(by_labels) == len(found), "a series occurs once"
    return by_labels


async def read_metrics(admin: Admin) -> Samples:
    """`collected`, for tests that run on the loop already."""
    return samples_in((await admin.ask("GET", "/metrics")).body.decode())


def collected(admin: Admin) -> Samples:
    return samples_in(admin("GET", "/metrics").body.decode())


def series(samples: Samples, name: str, **labels: object) -> float:
    return samples[name, frozenset((key, str(text)) for key, text in {"worker": 0, **labels}.items())]


def value(samples: Samples, name: str, **labels: object) -> float:
    return series(samples, f"pulsar_scalable_topic_{name}", topic=TOPIC, **labels)


def test_all_names_of_the_pips_are_there(admin: Admin) -> None:
    admin("PUT", f"{ORDERS}?numInitialSegments=2")
    text = admin("GET", "/metrics").body.decode()
    samples = samples_in(text)
    assert {name: kind for name, kind in OF_THE_PIPS.items() if f"# TYPE {name} {kind}\n" not in text} == {}
    assert value(samples, "active_segments") == 2
    assert value(samples, "auto_splits_total") == 0
    assert value(samples, "segment_buckets", segment=0) == 2


def test_rebuckets_are_counted_and_forgotten_segments_leave_no_series(admin: Admin) -> None:
    admin("PUT", ORDERS)
    assert admin("POST", f"{ORDERS}/rebucket/0?bucketCount=8").status == 204
    samples = collected(admin)
    assert value(samples, "rebucket_rollovers_total") == 1
    assert value(samples, "segment_buckets", segment=0) == 4
    assert value(samples, "segment_buckets", segment=1) == 8
    admin("DELETE", ORDERS)
    assert not [name for name, labels in collected(admin) if ("topic", TOPIC) in labels]


@pytest.mark.virtual_time(seed="admin")
async def test_consumers_that_share_a_segment_are_seen_with_the_buckets_that_change_hands(
    admin: Admin,
) -> None:
    client = admin.brokers.client()
    await admin.ask("PUT", ORDERS)

    async def publish() -> None:
        producer = await client.create_producer(TOPIC)
        for number in range(10):
            await producer.send_many([b"%d" % number] * 64, keys=[f"key-{key}" for key in range(64)])
        await producer.close()

    async def subscribe(name: str) -> Any:
        consumer = await client.subscribe_stream(TOPIC, "s", name=name, initial_position="earliest")
        await asyncio.sleep(1)
        return consumer

    async def take(consumer: Any, acknowledge: bool) -> None:
        while messages := await consumer.receive_many(1000, timeout=0.5):
            if acknowledge:
                await consumer.acknowledge_cumulative(messages[-1])

    await publish()
    where = {"subscription": "s", "segment": 0}
    one, two = await subscribe("a"), await subscribe("b")
    samples = await read_metrics(admin)
    assert value(samples, "segment_sharing_consumers", **where) == 2
    assert value(samples, "segment_buckets_withheld", **where) in (0, 2), "one may have buffered all"
    for consumer in (one, two):
        await take(consumer, acknowledge=True)
    assert value(await read_metrics(admin), "segment_buckets_withheld", **where) == 0
    await publish()
    await asyncio.sleep(1)
    samples = await read_metrics(admin)
    before = value(samples, "segment_bucket_reassignments_total", **where)
    assert value(samples, "segment_messages_in_total", segment=0) == 1280
    assert 20 <= value(samples, "segment_entries_in_total", segment=0) <= 80
    third = await subscribe("c")
    samples = await read_metrics(admin)
    assert value(samples, "segment_sharing_consumers", **where) == 3
    assert value(samples, "segment_bucket_reassignments_total", **where) > before
    assert value(samples, "segment_buckets_withheld", **where) > 0
    assert value(samples, "segment_drain_mode", **where) == 0
    assert (await admin.ask("POST", f"{ORDERS}/split/0")).status == 204
    await asyncio.sleep(1)
    assert value(await read_metrics(admin), "segment_drain_mode", **where) == 1
    for consumer in (one, two, third):
        await consumer.close()
    await asyncio.sleep(1)
    assert value(await read_metrics(admin), "segment_drain_mode", **where) == 0
    await client.close()


@pytest.mark.parametrize(
    ("decision", "done", "expected"),
    [
        (Decision(Split(0, (5,)), "", then=(Split(1, (9,)),)), True, (2, 0, 0, 0)),
        (Decision(Merge((0, 1)), ""), True, (0, 1, 0, 0)),
        (Decision(Split(0, (5,)), ""), False, (0, 0, 0, 0)),
        (Decision(Keep(), "", capped=frozenset(("max_segments",))), False, (0, 0, 1, 0)),
        (Decision(Keep(), "", capped=frozenset(("max_dag_depth",))), False, (0, 0, 0, 1)),
    ],
)
def test_decisions_of_auto_scaling_are_counted(
    admin: Admin, decision: Decision, done: bool, expected: tuple[int, ...]
) -> None:
    admin("PUT", ORDERS)
    (led,) = admin.broker.controllers.summaries()
    led.tally.count(decision, done=done)
    samples = collected(admin)
    names = (
        "auto_splits_total",
        "auto_merges_total",
        "split_suppressed_max_segments_total",
        "merge_suppressed_max_depth_total",
    )
    assert tuple(value(samples, name) for name in names) == expected


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        (OPENMETRICS, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ],
)
async def test_both_formats_are_valid_and_have_the_same_samples(
    orders: Admin, accept: str, content_type: str
) -> None:
    await orders.ask("PUT", f"{ORDERS}/subscriptions/billing")
    answer = await orders.ask("GET", "/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith(content_type)
    samples = samples_in(answer.body.decode())
    assert series(samples, "anabranch_messages_in_total", topic=TOPIC) == 0
    assert series(samples, "anabranch_segments", topic=TOPIC, state="active") == 2
    assert series(samples, "anabranch_backlog_messages", topic=TOPIC, subscription="billing") == 0
    assert series(samples, "anabranch_worker_up") == 1
    names = {name for name, _ in samples}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"} <= names
    assert {"process_start_time_seconds", "python_gc_collections_total", "anabranch_build_info"} <= names


def test_every_sample_names_its_worker(orders: Admin) -> None:
    assert all(("worker", "0") in labels for _, labels in collected(orders))


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", "ä,{}"])
def test_labels_are_escaped(text: str) -> None:
    table = Table(Column("anabranch_x_total", "counter", "For a test."))
    table.add(label("topic", text), 1.5)
    table.add(label("topic", text), 2)
    (part,) = table.parts("0", encode)
    assert series(samples_in((part.header + part.lines).decode()), "anabranch_x_total", topic=text) == 3.5


def encode(families: Families) -> bytes:
    (family,) = families.collect()
    return f"# HELP {family.name}_total x\n# TYPE {family.name}_total {family.type}\n".encode()


def test_a_long_table_is_written_in_parts_of_a_bounded_size() -> None:
    table = Table(Column("anabranch_x_total", "counter", "For a test."))
    for number in range(10_000):
        table.add(label("topic", f"persistent://public/default/t-{number}"), number)
    parts: list[TextPart] = []
    slowest_s = 0.0
    began_s = time.thread_time()
    for part in table.parts("0", encode):
        slowest_s = max(slowest_s, time.thread_time() - began_s)
        parts.append(part)
        began_s = time.thread_time()
    assert len(parts) > 10
    assert max(len(part.lines) for part in parts) < 70_000
    assert sum(part.lines.count(b"\n") for part in parts) == 10_000
    assert slowest_s < 0.02, "one part takes less than a millisecond on a quiet machine"


@pytest.mark.brokers(topic_metrics=False)
def test_figures_of_topics_can_be_added_up_by_namespace(admin: Admin) -> None:
    for topic in ("a", "b"):
        admin("PUT", f"/admin/v2/scalable/public/default/{topic}?numInitialSegments=3")
        admin("PUT", f"/admin/v2/scalable/public/default/{topic}/subscriptions/s")
    samples = collected(admin)
    where = {"namespace": "public/default"}
    assert series(samples, "pulsar_scalable_topic_active_segments", **where) == 6
    assert series(samples, "anabranch_segments", state="active", **where) == 6
    assert series(samples, "anabranch_backlog_messages", **where) == 0
    assert not [labels for _, labels in samples if any(key in ("topic", "segment") for key, _ in labels)]


def test_a_log_that_no_client_used_since_the_start_is_reported(admin: Admin) -> None:
    async def prepare() -> None:
        client = admin.brokers.client()
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        producer = await client.create_producer(TOPIC)
        await producer.send_many([b"x"] * 7)
        await consumer.close()
        await client.close()
        await admin.brokers.restart()

    admin("PUT", ORDERS)
    admin.loop.run(prepare())
    admin.use(admin.brokers)
    samples = collected(admin)
    assert series(samples, "anabranch_backlog_messages", topic=TOPIC, subscription="s") == 7
    assert series(samples, "anabranch_storage_bytes", topic=TOPIC) > 0
    assert series(samples, "anabranch_messages_in_total", topic=TOPIC) == 0


@pytest.mark.brokers(count=2)
async def test_one_scrape_shows_all_workers(admin: Admin) -> None:
    for number in range(8):
        await admin.ask("PUT", f"/admin/v2/scalable/public/default/t{number}")
    for at in (0, 1):
        answer = await admin.ask("GET", "/metrics", at=at, headers={"accept": OPENMETRICS})
        samples = samples_in(answer.body.decode())
        for worker in (0, 1):
            assert series(samples, "anabranch_worker_up", worker=worker) == 1
            assert series(samples, "anabranch_connections", worker=worker) >= 0
        epochs = [labels for name, labels in samples if name == "anabranch_layout_epoch"]
        assert len(epochs) == 8
        assert {dict(labels)["worker"] for labels in epochs} == {"0", "1"}


@pytest.mark.brokers(count=2)
async def test_a_worker_that_does_not_answer_is_shown_as_down(admin: Admin) -> None:
    await admin.ask("PUT", ORDERS)
    await admin.ask("GET", "/metrics", at=0)
    admin.brokers.hold_links()
    samples = samples_in((await admin.ask("GET", "/metrics", at=0)).body.decode())
    assert series(samples, "anabranch_worker_up", worker=0) == 1
    assert series(samples, "anabranch_worker_up", worker=1) == 0
    assert series(samples, "anabranch_connections", worker=0) >= 0
    admin.brokers.kill(1)
    await asyncio.sleep(1)
    samples = samples_in((await admin.ask("GET", "/metrics", at=0)).body.decode())
    assert series(samples, "anabranch_worker_up", worker=1) == 0


async def test_a_scrape_that_is_dropped_during_its_last_part_ends(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, ready = LocalMetrics(admin.broker), asyncio.Event()

    async def parts(accept: str) -> AsyncIterator[TextPart]:
        if not await ready.wait():
            yield b"", b""

    monkeypatch.setattr(metrics, "parts", parts)
    async with asyncio.TaskGroup() as group:
        scrapes = [group.create_task(metrics.next_part(str(n), "", True)) for n in range(2 * OPEN_MAX)]
        await asyncio.sleep(1)
        ready.set()
    assert [scrape.result() for scrape in scrapes] == [None] * len(scrapes)


async def test_latencies_are_counted_per_entry_commit_and_delivery(admin: Admin) -> None:
    timings = admin.broker.environment.timings
    await admin.ask("PUT", ORDERS)
    async with admin.brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        producer = await client.create_producer(TOPIC)
        await producer.send(b"x")
        await consumer.receive(timeout=5)
    assert sum(timings.dispatch.counts) == 1
    timings.sync.observe(0.003)
    timings.publish.observe(0.7, 2)
    samples = await read_metrics(admin)
    assert series(samples, "anabranch_dispatch_latency_seconds_count") == 1
    assert series(samples, "anabranch_sync_latency_seconds_bucket", le="0.002") == 0
    assert series(samples, "anabranch_sync_latency_seconds_bucket", le="0.005") == 1
    assert series(samples, "anabranch_publish_latency_seconds_bucket", le="1.0") == 2
    assert series(samples, "anabranch_publish_latency_seconds_sum") == pytest.approx(1.4)


def test_a_bucket_includes_its_bound() -> None:
    histogram = TimeHistogram()
    for seconds in (0.0, 0.0005, 0.0006, 10.0, 11.0):
        histogram.observe(seconds)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-2:] == [1, 1]
