"""Wrong types of options raise InvalidConfigurationError, which names the option, before any connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from typing import Any, cast, get_type_hints

import pytest

from anabranch import (
    App,
    AsyncAdminClient,
    AsyncClient,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
    Backoff,
    Batching,
    Checkpoint,
    Client,
    DeadLetter,
    Decrypt,
    Encrypt,
    Message,
    MessageId,
    PemFiles,
    Schema,
)
from anabranch.apps import HandlerOptions
from anabranch.client.consume.consumers.arguments import ConsumerArguments, QueueArguments, StreamArguments
from anabranch.client.consume.handlers.run_options import RunArguments
from anabranch.client.options import ClientArguments, ProducerArguments
from anabranch.credentials.authentication import Authentication
from anabranch.errors import InvalidConfigurationError
from anabranch.otel import Telemetry
from anabranch.transport.tls_arguments import TlsArguments
from tests.harness.cluster import Brokers

TLS_URL = "pulsar+ssl://127.0.0.1:1"
KEYS = PemFiles("keys.pem")

MAKERS: list[tuple[Callable[..., Any], dict[str, Any], type | None]] = [
    (AsyncClient, {"service_url": TLS_URL}, ClientArguments),
    (Client, {"service_url": TLS_URL}, ClientArguments),
    (AsyncAdminClient, {"url": "https://127.0.0.1:1"}, TlsArguments),
    (App, {"service_url": TLS_URL}, None),
    (HandlerOptions, {}, None),
    (Batching, {}, None),
    (DeadLetter, {"max_redeliveries": 1}, None),
    (Backoff, {}, None),
    (PemFiles, {"files": "keys.pem"}, None),
    (Encrypt, {"names": "app", "keys": KEYS}, None),
    (Decrypt, {"keys": KEYS}, None),
    (AuthenticationToken, {"token": "t"}, None),
    (AuthenticationTLS, {"certificate_path": "a", "private_key_path": "b"}, None),
    (AuthenticationBasic, {"username": "a", "password": "b"}, None),
    (Telemetry, {}, None),
]
OPENINGS: list[tuple[str, dict[str, Any], type | None]] = [
    ("create_producer", {"topic": "t"}, ProducerArguments),
    ("subscribe_stream", {"topic": "t", "subscription": "s"}, StreamArguments),
    ("subscribe_queue", {"topic": "t", "subscription": "s"}, QueueArguments),
    ("subscribe_topics", {"topics": ["t"], "subscription": "s"}, QueueArguments),
    ("create_checkpoint_consumer", {"topic": "t"}, ConsumerArguments),
    ("layout", {"topic": "t"}, None),
    ("topic_schema", {"topic": "t"}, None),
    ("topics", {"namespace": "public/default"}, None),
]
WORDS = {"service_url": "service URL", "url": "admin URL", "auth_params_string": "not both"}
"""The words of an error in place of the name of the option."""


class Odd:
    """An object of no use for any option; true, as a text such as "false" is."""


ODD: Any = Odd()
UNHASHABLE: Any = [1]
FIVE: Any = "5"


def options_of(call: Callable[..., Any], more: type | None) -> Iterator[str]:
    for name, given in signature(call).parameters.items():
        if given.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY) and name != "self":
            yield name
    if more is not None:
        yield from get_type_hints(more)


@pytest.mark.parametrize(
    ("make", "given", "name"),
    [
        pytest.param(make, given, name, id=f"{make.__name__}-{name}")
        for make, given, more in MAKERS
        for name in options_of(make, more)
    ],
)
def test_an_object_refuses_a_wrong_option(make: Callable[..., Any], given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=WORDS.get(name, name)):
        make(**given | {name: Odd()})


@pytest.mark.parametrize(
    ("opening", "given", "name"),
    [
        pytest.param(opening, given, name, id=f"{opening}-{name}")
        for opening, given, more in OPENINGS
        for name in options_of(getattr(AsyncClient, opening), more)
    ],
)
async def test_a_client_refuses_a_wrong_option_without_a_broker(
    opening: str, given: dict[str, Any], name: str
) -> None:
    async with AsyncClient("pulsar://127.0.0.1:1") as client:
        with pytest.raises(InvalidConfigurationError, match=name):
            await getattr(client, opening)(**given | {name: Odd()})


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: Checkpoint.from_bytes(ODD), "data must be bytes"),
        (lambda: Checkpoint.at_ms(ODD), "timestamp_ms must be a whole number"),
        (lambda: Checkpoint.merge(ODD), "checkpoints must be a list of Checkpoint objects"),
        (lambda: Checkpoint.merge([ODD]), "checkpoints must be a list of Checkpoint objects"),
        (lambda: MessageId.from_bytes(ODD), "data must be bytes"),
        (lambda: Schema.avro(UNHASHABLE), "a schema needs a type"),
        (
            lambda: Schema.key_value(Schema.string(), Schema.string(), separated=ODD),
            "separated must be True",
        ),
        (lambda: AuthenticationOauth2(ODD), "must be text"),
        (lambda: AuthenticationBasic(auth_params_string=ODD), "must be text"),
        (lambda: App(TLS_URL).subscriber(ODD, subscription="s"), "a topic name must be text"),
        (lambda: App(TLS_URL).subscriber("t", subscription=ODD), "a subscription name must be text"),
        (lambda: App(TLS_URL).subscriber("t", subscription="s", options=ODD), "options must be"),
        (lambda: App(TLS_URL).subscriber("t", subscription="s")(ODD), "handler must be a function"),
        (lambda: DeadLetter(True), "max_redeliveries must be a whole number of at least 0, not True"),
        (lambda: Batching(max_delay=float("nan")), "max_delay must be a number of at least 0, not nan"),
        (lambda: AsyncClient(TLS_URL, operation_timeout=FIVE), "operation_timeout must be a positive number"),
    ],
)
def test_other_wrong_types(call: Callable[[], Any], reason: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=reason):
        call()


def test_a_text_does_not_switch_the_check_of_certificates_off() -> None:
    with pytest.raises(InvalidConfigurationError, match="must be True or False, not 'false'"):
        AsyncClient(TLS_URL, tls_allow_insecure_connection="false")  # type: ignore[arg-type]


def test_an_error_does_not_show_a_password_of_a_wrong_type() -> None:
    password: Any = b"secret"
    with pytest.raises(InvalidConfigurationError, match="password must be text, not bytes"):
        AuthenticationBasic("alice", password)


@pytest.mark.parametrize("size", [True, 0, 2**31, 2.5, "10"])
async def test_a_queue_size_that_the_wire_cannot_carry_is_refused(brokers: Brokers, size: Any) -> None:
    async with brokers.client() as client:
        with pytest.raises(InvalidConfigurationError, match="receiver_queue_size must be a whole number"):
            await client.subscribe_queue("t", "s", receiver_queue_size=size)


async def test_methods_of_producers_and_consumers_refuse_wrong_types(brokers: Brokers) -> None:
    async with brokers.client() as client:
        producer = await client.create_producer("t")
        queue = await client.subscribe_queue("t", "s", initial_position="earliest")
        await producer.send(b"one")
        message = await queue.receive()
        for name in options_of(producer.send, None):
            if name not in ("value", "key"):
                with pytest.raises(InvalidConfigurationError, match=name):
                    await producer.send(b"x", **{name: ODD})
        for values in (ODD, (value for value in [b"x"]), b"x"):
            with pytest.raises(InvalidConfigurationError, match="values must be a list"):
                await producer.send_many(cast(Any, values))
        with pytest.raises(InvalidConfigurationError, match="keys must be a list"):
            await producer.send_many([b"x"], ODD)
        with pytest.raises(InvalidConfigurationError, match="reason must be text"):
            await queue.negative_acknowledge(message, reason=ODD)
        with pytest.raises(InvalidConfigurationError, match="key must be"):
            await queue.release_parked(ODD)
        for call in (queue.receive, queue.flush_acks, queue.close, producer.flush, producer.close):
            with pytest.raises(InvalidConfigurationError, match="timeout must be"):
                await call(timeout=ODD)


async def test_a_run_refuses_wrong_types(brokers: Brokers) -> None:
    async def handle(message: Message[bytes]) -> None: ...

    async with brokers.client() as client:
        queue = await client.subscribe_queue("t", "s")
        for name in options_of(queue.run, RunArguments):
            with pytest.raises(InvalidConfigurationError, match=name):
                await queue.run(**{"handler": handle, name: Odd()})  # type: ignore[arg-type]


def test_an_authentication_of_a_users_own_class_is_accepted() -> None:
    class Own:
        method_name = "own"

        async def auth_data(self, host: str) -> bytes:
            return b""

    own: Authentication = Own()
    AsyncClient("pulsar://127.0.0.1:1", authentication=own)
