"""Traces and metrics of OpenTelemetry through a real broker: handlers, applications, failures, the guide."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from anabranch import AsyncClient, Backoff, Client, Message
from anabranch.apps import App, HandlerOptions
from anabranch.errors import MessageTooBigError
from anabranch.otel import Telemetry
from anabranch.testing.local_broker import LocalBroker

pytest_plugins = ["anabranch.testing.pytest_broker"]

TOPIC = "topic://public/default/orders"


class Collected:
    """A telemetry whose spans and metrics stay in memory."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])
        self.telemetry = Telemetry(self.tracers, self.meters)

    def spans(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def points(self) -> dict[str, list[Any]]:
        """The data points by the name of the metric."""
        found: Any = self._reader.get_metrics_data()
        metrics = [
            metric
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        return {metric.name: list(metric.data.data_points) for metric in metrics}

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def collected() -> Iterator[Collected]:
    made = Collected()
    yield made
    made.close()


@pytest.mark.real_time
async def test_an_application_continues_the_trace_of_its_message(
    anabranch_broker: LocalBroker, collected: Collected
) -> None:
    app = App(anabranch_broker.url, interceptors=[collected.telemetry])
    done = asyncio.Event()
    attempts: list[str] = []

    @app.subscriber("orders", subscription="billing", options=HandlerOptions(retry=Backoff(0.01, 0.01)))
    async def charge(message: Message[bytes]) -> None:
        attempts.append(message.properties["traceparent"])
        if len(attempts) == 1:
            raise ValueError("no cup")
        await app.publish("receipts", b"paid")
        done.set()

    tracer = collected.tracers.get_tracer("test")
    async with AsyncClient(anabranch_broker.url, interceptors=[collected.telemetry]) as client:
        producer = await client.create_producer("orders")
        with tracer.start_as_current_span("shop") as shop:
            stored = await producer.send(b"tea", key="alice")
        running = asyncio.ensure_future(app.run())
        await asyncio.wait_for(done.wait(), 20)
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    (sent,) = collected.spans(f"send {TOPIC}")
    (published,) = collected.spans("send topic://public/default/receipts")
    failed, handled = collected.spans(f"process {TOPIC}")
    assert sent.parent.span_id == shop.get_span_context().span_id
    assert [failed.parent.span_id, handled.parent.span_id] == [sent.context.span_id] * 2
    assert published.parent.span_id == handled.context.span_id
    assert {span.context.trace_id for span in (sent, failed, handled, published)} == {sent.context.trace_id}
    assert (sent.kind, handled.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert sent.attributes["messaging.message.id"] == str(stored)
    assert sent.attributes["messaging.message.body.size"] == 3
    assert handled.attributes["messaging.destination.subscription.name"] == "billing"
    assert handled.attributes["messaging.system"] == "pulsar"
    assert (failed.attributes["error.type"], failed.events[0].name) == ("ValueError", "exception")
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert handled.status.status_code is trace.StatusCode.UNSET


def test_threads_of_a_blocking_run_have_the_span_of_their_message(
    anabranch_broker: LocalBroker, collected: Collected
) -> None:
    seen: list[int] = []
    with Client(anabranch_broker.url, interceptors=[collected.telemetry]) as client:
        producer = client.create_producer("orders")
        producer.send_many([b"tea", b"milk"])
        with pytest.raises(MessageTooBigError):
            producer.send(bytes(producer.message_bytes_max + 1))
        consumer = client.subscribe_queue("orders", "s", initial_position="earliest")
        stop = threading.Event()

        def handle(message: Message[bytes]) -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)
            if len(seen) == 2:
                stop.set()

        consumer.run(handle, stop=stop)
    spans = collected.spans(f"process {TOPIC}")
    assert sorted(seen) == sorted(span.context.span_id for span in spans)
    points = collected.points()
    sent = {
        point.attributes.get("error.type"): point.value for point in points["messaging.client.sent.messages"]
    }
    assert sent == {None: 2, "MessageTooBigError": 1}
    (consumed,) = points["messaging.client.consumed.messages"]
    (processed,) = points["messaging.process.duration"]
    assert (consumed.value, processed.count) == (2, 2)
    assert sum(point.count for point in points["messaging.client.operation.duration"]) == 3


def test_the_example_of_the_guide_runs(
    anabranch_broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
    code = guide.partition("```python\n")[2].partition("```")[0]
    exec(code.replace("pulsar://127.0.0.1:6650", anabranch_broker.url), {})
    assert capsys.readouterr().out == "charging alice\n"


def test_opentelemetry_is_not_imported_before_it_is_used() -> None:
    code = """
import sys, anabranch, anabranch.apps
anabranch.Client("pulsar://127.0.0.1:1"), anabranch.Interceptor
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
import anabranch.otel
anabranch.otel.Telemetry()
assert "opentelemetry.trace" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
