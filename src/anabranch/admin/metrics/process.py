"""The figures of a broker that belong to no topic, as collectors of `prometheus_client`."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Metric,
    ProcessCollector,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from anabranch.admin.metrics.tables import Encode, Families, TextPart, split_header
from anabranch.broker.broker import Broker
from anabranch.timings import BOUNDS_S, TimeHistogram

BOUNDS = [*map(floatToGoString, BOUNDS_S), "+Inf"]


class BrokerCollector(Collector):
    """Collects the figures of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        versions = {"version": version("anabranch"), "python": platform.python_version()}
        yield InfoMetricFamily("anabranch_build", "Version of the broker and of Python.", value=versions)
        connections = len(self._broker.connections)
        yield GaugeMetricFamily("anabranch_connections", "Open client connections.", value=connections)
        about = "1 while the store takes no entries because its disk is full."
        full = GaugeMetricFamily("anabranch_store_full", about, labels=["store"])
        about = "Damaged places that the last start of the store found, and reported in the log."
        damage = GaugeMetricFamily("anabranch_store_damage", about, labels=["store"])
        for number, storage in sorted(self._broker.stores.opened.items()):
            full.add_metric([str(number)], float(storage.full is not None))
            damage.add_metric([str(number)], len(storage.findings))
        yield full
        yield damage
        yield from self._credits()
        timings = self._broker.environment.timings
        yield _histogram(
            "anabranch_publish_latency_seconds",
            "Time of an entry from SEND until its receipt; entries of one commit count with its oldest.",
            timings.publish,
        )
        yield _histogram(
            "anabranch_sync_latency_seconds", "Time to write and sync a commit of the journal.", timings.sync
        )
        yield _histogram(
            "anabranch_dispatch_latency_seconds",
            "Time from the wake-up of a subscription, by a new entry or permits, until entries were sent.",
            timings.dispatch,
        )

    def _credits(self) -> Iterator[Metric]:
        totals = self._broker.quotas.book.throttles.credits
        about = "Producers of Anabranch clients that wait for credit, because a rate is exceeded."
        yield GaugeMetricFamily("anabranch_producers_without_credit", about, value=totals.waiting)
        about = "How often a producer had no credit."
        yield CounterMetricFamily("anabranch_producer_credit_waits", about, value=totals.waits)
        about = "Time that producers had no credit, over all producers."
        yield CounterMetricFamily("anabranch_producer_credit_wait_seconds", about, value=totals.seconds)


def _histogram(name: str, about: str, measured: TimeHistogram) -> Metric:
    buckets = list(zip(BOUNDS, accumulate(measured.counts), strict=True))
    return HistogramMetricFamily(name, about, buckets=buckets, sum_value=measured.sum_s)


def make_registry(broker: Broker) -> CollectorRegistry:
    """Return the collectors of this process: broker, operating system and garbage collection."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(broker))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def process_parts(registry: CollectorRegistry, worker: str, encode: Encode) -> Iterator[TextPart]:
    """Yield the text of all families of the registry, with the label `worker` on each line."""
    for family in registry.collect():
        family.samples = [_labelled(sample, worker) for sample in family.samples]
        yield split_header(encode(Families([family])))


def _labelled(sample: Sample, worker: str) -> Sample:
    return sample._replace(labels={**sample.labels, "worker": worker})
