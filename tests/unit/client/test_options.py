"""The options of callers, and the errors for invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from anabranch import AsyncClient, Backoff, Batching, Checkpoint, DeadLetter, Schema
from anabranch.client.options import parse_service_url, parse_topic, seconds, wall_ms
from anabranch.errors import InvalidConfigurationError, InvalidNameError, InvalidServiceUrlError


def test_a_backoff_doubles_up_to_its_maximum() -> None:
    backoff = Backoff(0.1, 1.0, jitter=0.0)
    assert [round(backoff.delay(n, Random(0)), 3) for n in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.delay(10_000, Random(0)) == 1.0


def test_jitter_varies_a_delay_by_at_most_half_of_it_each_way() -> None:
    backoff = Backoff(1.0, 1.0, jitter=0.1)
    delays = [backoff.delay(0, Random(seed)) for seed in range(200)]
    assert 0.95 <= min(delays) < 0.96 < 1.04 < max(delays) <= 1.05


def test_a_constant_backoff_is_allowed() -> None:
    assert Backoff(60.0, 60.0, multiplier=1.0, jitter=0.0).delay(9, Random(0)) == 60.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(0.0, 1.0),
        lambda: Backoff(2.0, 1.0),
        lambda: Backoff(1.0, 1.0, multiplier=0.5),
        lambda: Backoff(1.0, 1.0, jitter=2.0),
        lambda: Batching(max_messages=0),
        lambda: Batching(max_bytes=0),
        lambda: Batching(max_delay=-1.0),
        lambda: DeadLetter(-1),
        lambda: DeadLetter(1, topic="segment://a/b/c/0000-ffff-0"),
        lambda: seconds("x", -1.0),
        lambda: seconds("x", float("nan")),
        lambda: seconds("x", 0),
        lambda: seconds("x", None),  # type: ignore[arg-type]
        lambda: wall_ms("x", datetime(2026, 1, 1)),
        lambda: AsyncClient("pulsar://h", operation_timeout=0),
        lambda: AsyncClient("pulsar://h", memory_limit=0),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_when_it_is_given(make: object) -> None:
    with pytest.raises(InvalidConfigurationError):
        make()  # type: ignore[operator]


def test_durations_may_be_timedeltas() -> None:
    assert seconds("x", timedelta(milliseconds=1500)) == 1.5


def test_instants_are_exact_to_the_millisecond() -> None:
    assert wall_ms("x", datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=7)) % 1000 == 7


def test_service_urls_name_one_host_or_several() -> None:
    assert parse_service_url("pulsar://localhost") == (("localhost", 6650),)
    assert parse_service_url("pulsar://a:1,b:2/") == (("a", 1), ("b", 2))
    assert parse_service_url("pulsar://[::1]:7000,[::1]") == (("::1", 7000), ("::1", 6650))
    assert parse_service_url("pulsar+ssl://a,b:2") == (("a", 6651), ("b", 2))


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://localhost:8080", "binary port"),
        ("localhost:6650", "pulsar://host:port"),
        ("", "pulsar://host:port"),
        ("ssl://localhost", "pulsar.ssl://host:port"),
        ("pulsar://", "host:port"),
        ("pulsar://a:b", "host:port"),
        ("pulsar://a:70000", "host:port"),
        ("pulsar://[::1", "host:port"),
        ("pulsar://::1]:6650", "host:port"),
        ("pulsar://::1", "host:port"),
        ("pulsar://a b:6650", "host:port"),
        ("pulsar://a?b:6650", "host:port"),
        ("pulsar://user:pw@host", "authentication="),
    ],
)
def test_a_wrong_service_url_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(InvalidServiceUrlError, match=hint):
        AsyncClient(url)


def test_the_password_in_a_wrong_service_url_is_not_shown() -> None:
    with pytest.raises(InvalidServiceUrlError) as caught:
        AsyncClient("pulsar://user:secret@host:6650")
    assert "secret" not in str(caught.value)


def test_a_bare_topic_name_is_a_scalable_topic_of_the_default_namespace() -> None:
    assert str(parse_topic("orders")) == "topic://public/default/orders"
    assert str(parse_topic("a/b/orders")) == "topic://a/b/orders"
    assert str(parse_topic("persistent://a/b/orders")) == "persistent://a/b/orders"


@pytest.mark.parametrize("name", ["segment://a/b/c/0000-ffff-0", "non-persistent://a/b/c", "a/b", ""])
def test_names_that_cannot_be_opened_are_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        parse_topic(name)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda client: client.create_producer("a/b"), "is not a topic name"),
        (lambda client: client.create_producer("t", access_mode="odd"), "access_mode must be one of shared"),
        (lambda client: client.create_producer("t", compression="rar"), "compression must be one of lz4"),
        (lambda client: client.create_producer("t", name=""), "name must not be empty"),
        (lambda client: client.subscribe_queue("t", "s", name=""), "name must not be empty"),
        (lambda client: client.subscribe_stream("t", "s", name=""), "name must not be empty"),
        (lambda client: client.create_checkpoint_consumer("t", name=""), "name must not be empty"),
        (lambda client: client.subscribe_queue("t", ""), "cannot be a subscription name"),
        (
            lambda client: client.create_producer("t", send_timeout=-1),
            "send_timeout must be a positive number of seconds, not -1",
        ),
        (
            lambda client: client.create_producer("t", send_timeout="soon"),
            "send_timeout must be a positive number of seconds, not 'soon'",
        ),
        (lambda client: client.create_producer("t", batching=5), "batching must be a Batching"),
        (
            lambda client: client.create_producer("t", initial_sequence_id=-2),
            "initial_sequence_id must be -1 or more",
        ),
        (
            lambda client: client.create_producer("t", initial_sequence_id="5"),
            "initial_sequence_id must be -1 or more, not '5'",
        ),
        (lambda client: client.create_producer("t", properties={"a": 1}), "properties must map text to text"),
        (lambda client: client.create_producer("t", schema=Batching), "schema must be a schema"),
        (lambda client: client.subscribe_stream("t", ""), "cannot be a subscription name"),
        (
            lambda client: client.subscribe_stream("t", "s", initial_position="first"),
            "initial_position must be one of earliest",
        ),
        (
            lambda client: client.subscribe_stream("t", "s", receiver_queue_size=0),
            "receiver_queue_size must be a whole number",
        ),
        (
            lambda client: client.subscribe_queue("t", "s", ack_group_time=-1),
            "ack_group_time must be a positive number",
        ),
        (
            lambda client: client.subscribe_queue("t", "s", processing_timeout=0),
            "processing_timeout must be a positive number",
        ),
        (
            lambda client: client.subscribe_queue("t", "s", priority="high"),
            "priority must be a whole number of at least 0, not 'high'",
        ),
        (
            lambda client: client.subscribe_queue("t", "s", priority=-1),
            "priority must be a whole number of at least 0, not -1",
        ),
        (
            lambda client: client.subscribe_queue("t", "s", redelivery=5),
            "redelivery must be a Backoff, not 5",
        ),
        (
            lambda client: client.subscribe_queue("t", "s", dead_letter=5),
            "dead_letter must be a DeadLetter, not 5",
        ),
        (
            lambda client: client.subscribe_queue("t", "s", retry_topic=5),
            "retry_topic must be True, False or a name, not 5",
        ),
        (
            lambda client: client.subscribe_queue("t", "s", retry_topic="t"),
            "retry_topic must be another topic than topic://public/default/t",
        ),
        (
            lambda client: client.subscribe_queue(
                "t", "s", retry_topic="u", dead_letter=DeadLetter(1, topic="public/default/u")
            ),
            "retry_topic must be another topic than that of dead letters",
        ),
        (
            lambda client: client.subscribe_queue("t", "s", dead_letter=DeadLetter(1, topic="t")),
            "the dead letter topic must be another topic than topic://public/default/t",
        ),
        (
            lambda client: client.subscribe_stream("t", "s", dead_letter=DeadLetter(1, topic="t")),
            "the dead letter topic must be another topic than topic://public/default/t",
        ),
        (lambda client: client.subscribe_queue("t", "s", schema=str), "schema must be a schema"),
        (lambda client: client.create_checkpoint_consumer("t", start=b"bytes"), "start must be Checkpoint"),
    ],
)
async def test_bad_arguments_raise_before_any_network_call(call: Callable[[Any], Any], reason: str) -> None:
    # No broker listens at this address, so a call that dials it would fail with another error.
    async with AsyncClient("pulsar://127.0.0.1:1", connect_timeout=0.01) as client:
        with pytest.raises(InvalidConfigurationError, match=reason):
            await call(client)


def test_schemas_undo_themselves_and_refuse_other_types() -> None:
    assert Schema.bytes().decode(Schema.bytes().encode(b"x")) == b"x"
    assert Schema.string().decode(Schema.string().encode("héllo")) == "héllo"
    value = {"a": [1, None, "ü"]}
    assert Schema.json().decode(Schema.json().encode(value)) == value
    assert Schema.bytes().encode(bytearray(b"x")) == b"x"  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="schema"):
        Schema.bytes().encode("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Schema.string().encode(b"x")  # type: ignore[arg-type]


def test_checkpoints_are_values() -> None:
    assert Checkpoint.latest() == Checkpoint.from_bytes(Checkpoint.latest().to_bytes())
