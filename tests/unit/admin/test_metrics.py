"""Metrics for Prometheus: the text format, and the numbers that PIP-483 and PIP-486 ask for."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from anabranch.admin.metrics import Family, render
from anabranch.model.autoscale import Decision
from anabranch.model.scale_steps import Keep, Merge, Split
from tests.harness.admin import ORDERS, Admin

TOPIC = "topic://public/default/orders"
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.e+-]+|NaN|[+-]Inf)")

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


def parse(text: str) -> tuple[dict[str, str], dict[tuple[str, frozenset[str]], float]]:
    """Types by name and samples by name and labels; fails on a line that Prometheus refuses."""
    types: dict[str, str] = {}
    helped: set[str] = set()
    samples: dict[tuple[str, frozenset[str]], float] = {}
    current = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current, about = line.removeprefix("# HELP ").split(" ", 1)
            assert current not in helped, "one family in one piece"
            assert about
            helped.add(current)
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert name == current
            assert kind in ("counter", "gauge")
            assert (kind == "counter") == name.endswith("_total")
            types[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            assert found[1] == current
            key = (found[1], frozenset(re.findall(LABEL, found[2] or "")))
            assert key not in samples
            samples[key] = float(found[3])
    assert helped == set(types)
    return types, samples


async def read_metrics(admin: Admin) -> dict[tuple[str, frozenset[str]], float]:
    """`collected`, for tests that run on the loop already."""
    return parse((await admin.ask("GET", "/metrics")).body.decode())[1]


def collected(admin: Admin) -> dict[tuple[str, frozenset[str]], float]:
    return parse(admin("GET", "/metrics").body.decode())[1]


def value(samples: dict[tuple[str, frozenset[str]], float], name: str, **labels: object) -> float:
    prefix = "pulsar_scalable_topic_"
    wanted = frozenset(f'{label}="{text}"' for label, text in {"topic": TOPIC, **labels}.items())
    return samples[prefix + name, wanted]


def test_labels_are_escaped() -> None:
    family = Family("anabranch_x_total", "counter", "For a test.")
    family.add(1.5, topic='a"b\\c\nd', subscription="s")
    family.add(2)
    _, samples = parse(render([family]))
    assert sorted(samples.values()) == [1.5, 2]


def test_all_names_of_the_pips_are_there(admin: Admin) -> None:
    admin("PUT", f"{ORDERS}?numInitialSegments=2")
    types, samples = parse(admin("GET", "/metrics").body.decode())
    assert {name: types.get(name) for name in OF_THE_PIPS} == OF_THE_PIPS
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
    assert not [name for name, labels in collected(admin) if f'topic="{TOPIC}"' in labels]


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
    assert value(samples, "segment_buckets_withheld", **where) in (0, 2), "one may have all at hand"
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
    (tally,) = admin.broker.controllers.tallies().values()
    tally.count(decision, done=done)
    samples = collected(admin)
    names = (
        "auto_splits_total",
        "auto_merges_total",
        "split_suppressed_max_segments_total",
        "merge_suppressed_max_depth_total",
    )
    assert tuple(value(samples, name) for name in names) == expected


def test_metrics_are_in_prometheus_format(orders: Admin) -> None:
    orders("PUT", f"{ORDERS}/subscriptions/billing")
    answer = orders("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    assert "# TYPE anabranch_messages_in_total counter" in lines
    assert 'anabranch_messages_in_total{topic="topic://public/default/orders"} 0' in lines
    assert 'anabranch_segments{state="active",topic="topic://public/default/orders"} 2' in lines
    assert any(line.startswith("anabranch_backlog_messages{subscription=") for line in lines)
    for line in lines:
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
        if not line.startswith("#"):
            float(line.rsplit(" ", 1)[1])
