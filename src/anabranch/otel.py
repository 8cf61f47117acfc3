"""OpenTelemetry for producers and consumers: spans, metrics, and the trace context in message properties.

    client = AsyncClient("pulsar://127.0.0.1:6650", interceptors=[Telemetry()])

Only this module imports OpenTelemetry, whose API the extra `otel` installs. Names are those of its semantic
conventions for messaging.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from anabranch.arguments import refused
from anabranch.client.interceptors import Interceptor, SentMessage
from anabranch.client.message import Message, entry_of
from anabranch.model.ids import MessageId
from anabranch.schemas.optional import optional

SPAN: Final = "otel.span"
BEGAN: Final = "otel.began"


class Telemetry(Interceptor):
    """Give one to a client, a producer or a consumer; the providers are the global ones unless given.

    A producer has a span for each message from the call to the receipt, which the properties of the message
    carry on. A handler of `run` has a span below it. Code that receives messages itself makes that span with
    `with telemetry.handling(message):`.

    Example:
        telemetry = Telemetry()
        async with AsyncClient("pulsar://127.0.0.1:6650", interceptors=[telemetry]) as client:
            producer = await client.create_producer("orders")
            await producer.send(b"one tea", key="alice")
            consumer = await client.subscribe_stream("orders", "billing", initial_position="earliest")
            message = await consumer.receive(timeout=10)
            with telemetry.handling(message):
                print(message.value)
    """

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        needed = "traces and metrics", "otel"
        for name, given, method in (
            ("tracer_provider", tracer_provider, "get_tracer"),
            ("meter_provider", meter_provider, "get_meter"),
        ):
            if given is not None and not hasattr(given, method):
                raise refused(name, f"a provider with {method}()", given)
        self._trace = optional("opentelemetry.trace", *needed)
        self._propagate = optional("opentelemetry.propagate", *needed)
        metrics = optional("opentelemetry.metrics", *needed)
        self._tracer = self._trace.get_tracer("anabranch", tracer_provider=tracer_provider)
        meter = metrics.get_meter("anabranch", meter_provider=meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that producers sent."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that consumers received."
        )
        self._sending = meter.create_histogram(
            "messaging.client.operation.duration", "s", "From the call of a producer to the receipt."
        )
        self._processing = meter.create_histogram(
            "messaging.process.duration", "s", "The time of a handler with a message."
        )

    # Producers.

    def before_send(self, message: SentMessage) -> None:
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                **_place(message.topic, "send"),
                "messaging.client.id": message.producer_name,
                "messaging.message.body.size": message.size,
            },
        )
        message.notes[SPAN], message.notes[BEGAN] = span, time.perf_counter()
        self._propagate.inject(message.properties, context=self._trace.set_span_in_context(span))

    def on_receipt(
        self, message: SentMessage, message_id: MessageId | None, error: BaseException | None
    ) -> None:
        span = message.notes[SPAN]
        place = {**_place(message.topic, "send"), **_fault(error)}
        if message_id is not None:
            span.set_attribute("messaging.message.id", str(message_id))
        if error is not None:
            self._record(span, error)
        span.end()
        self._sent.add(1, place)
        self._sending.record(time.perf_counter() - message.notes[BEGAN], place)

    # Consumers.

    def on_receive(self, message: Message[Any]) -> None:
        self._consumed.add(1, {**_place(message.topic, "receive"), **_subscription(message)})

    @contextmanager
    def handling(self, message: Message[Any]) -> Iterator[Any]:
        """Yield the span of the work with a message, below that of its producer."""
        place = {**_place(message.topic, "process"), **_subscription(message)}
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=self.context_of(message),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                **place,
                "messaging.message.id": str(message.id),
                "messaging.message.body.size": message.size,
            },
        )
        began, failure = time.perf_counter(), None
        try:
            with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            failure = error
            self._record(span, error)
            raise
        finally:
            span.end()
            self._processing.record(time.perf_counter() - began, {**place, **_fault(failure)})

    def context_of(self, message: Message[Any]) -> Any:
        """Return the context that the producer of a message sent along, for links and spans of your own."""
        return self._propagate.extract(message.properties)

    def _record(self, span: Any, error: BaseException) -> None:
        span.record_exception(error)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        span.set_attributes(_fault(error))


def _place(topic: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "pulsar",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _subscription(message: Message[Any]) -> dict[str, Any]:
    name = entry_of(message).source.owner.subscription
    return {} if name is None else {"messaging.destination.subscription.name": name}


def _fault(error: BaseException | None) -> dict[str, Any]:
    return {} if error is None else {"error.type": type(error).__qualname__}
