"""The rates of single producers, consumers and subscriptions, from their counters.

A meter is made when its counters have grown, so an idle client has none. A log samples its clients when it
samples itself; messages cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from anabranch.broker.serving.delivery.consumer import ServedConsumer
from anabranch.broker.serving.log.producer import ServedProducer
from anabranch.broker.serving.rates.rate_meter import RateMeter
from anabranch.broker.serving.subscription.subscription import Subscription


class _Metered(Protocol):
    meter: RateMeter | None


class ProducerRates(NamedTuple):
    """Per second: messages, bytes, and chunks among the entries."""

    messages: float
    size_bytes: float
    chunks: float


class ConsumerRates(NamedTuple):
    """Per second: delivered messages and bytes, messages wanted again, and messages acknowledged."""

    messages: float
    size_bytes: float
    redelivered: float
    acked: float


class SubscriptionRates(NamedTuple):
    """As `ConsumerRates`, over all consumers, and the messages that expired."""

    messages: float
    size_bytes: float
    redelivered: float
    acked: float
    expired: float


def sample(
    producers: Mapping[str, ServedProducer],
    subscriptions: Mapping[str, Subscription],
    now_s: float,
    window_s: float,
) -> None:
    """Remember the counters of these clients; called at even intervals."""
    for producer in producers.values():
        _sample(producer, _of_producer(producer), now_s, window_s)
    for subscription in subscriptions.values():
        _sample(subscription.counters, _of_subscription(subscription), now_s, window_s)
        for consumer in subscription.consumers:
            _sample(consumer, _of_consumer(consumer), now_s, window_s)


def producer_rates(producer: ServedProducer, now_s: float, window_s: float) -> ProducerRates:
    return ProducerRates(*_rates(producer, _of_producer(producer), now_s, window_s))


def consumer_rates(consumer: ServedConsumer, now_s: float, window_s: float) -> ConsumerRates:
    return ConsumerRates(*_rates(consumer, _of_consumer(consumer), now_s, window_s))


def subscription_rates(subscription: Subscription, now_s: float, window_s: float) -> SubscriptionRates:
    counts = _of_subscription(subscription)
    return SubscriptionRates(*_rates(subscription.counters, counts, now_s, window_s))


def _of_producer(producer: ServedProducer) -> Sequence[int]:
    return producer.messages_in, producer.bytes_in, producer.chunks_in


def _of_consumer(consumer: ServedConsumer) -> Sequence[int]:
    return consumer.messages_out, consumer.bytes_out, consumer.messages_redelivered, consumer.messages_acked


def _of_subscription(subscription: Subscription) -> Sequence[int]:
    counters, consumers = subscription.counters, subscription.consumers
    return (
        counters.messages_out,
        counters.bytes_out,
        counters.messages_redelivered + sum(one.messages_redelivered for one in consumers),
        counters.messages_acked + sum(one.messages_acked for one in consumers),
        counters.messages_expired,
    )


def _sample(metered: _Metered, counts: Sequence[int], now_s: float, window_s: float) -> None:
    if metered.meter is None:
        if not any(counts):
            return
        # The counters have grown since the last sample, which is less than a window ago.
        metered.meter = RateMeter(window_s, now_s, [0] * len(counts))
    metered.meter.sample(now_s, counts)


def _rates(metered: _Metered, counts: Sequence[int], now_s: float, window_s: float) -> Sequence[float]:
    if metered.meter is None:
        return [count / window_s for count in counts]
    return metered.meter.rates(now_s, counts)
