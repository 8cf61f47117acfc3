"""Handlers without a broker, as the tests of an application run them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from anabranch import Message, Schema, SchemaError
from anabranch.apps import App, BenchPublished, HandlerOptions
from anabranch.errors import InvalidConfigurationError, InvalidNameError, UnreachableError


@dataclass
class Purchase:
    customer: str
    amount: int


steps: list[str] = []


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    steps.append("open")
    yield
    steps.append("close")


app = App("pulsar://127.0.0.1:1", lifespan=lifespan)


@app.subscriber("orders", subscription="billing", options=HandlerOptions(schema=Schema.json(Purchase)))
async def charge(message: Message[Purchase]) -> None:
    order = message.value
    assert order is not None
    steps.append(f"charge {order.customer}")
    if order.amount < 0:
        raise ValueError("a negative amount")
    await app.publish("receipts", b"%d" % order.amount, key=message.key)


async def test_a_bench_calls_handlers_with_typed_values_and_keeps_the_published_ones() -> None:
    steps.clear()
    async with app.bench() as bench:
        await bench.deliver("topic://public/default/orders", Purchase("alice", 3), key="alice")
        assert bench.published == [BenchPublished("topic://public/default/receipts", b"3", "alice")]
    assert steps == ["open", "charge alice", "close"]


async def test_a_bench_delivers_messages_that_have_all_parts_of_received_ones() -> None:
    found: list[Message[bytes]] = []
    other = App("pulsar://127.0.0.1:1")
    event_time = datetime(2030, 1, 2, tzinfo=UTC)

    @other.subscriber("orders", subscription="s")
    async def keep(message: Message[bytes]) -> None:
        found.append(message)

    async with other.bench() as bench:
        await bench.deliver("orders", b"tea", key="alice", properties={"a": "b"}, event_time=event_time)
        await bench.deliver("orders", None, key=b"\xff")
    first, second = found
    assert isinstance(first, Message)
    assert (first.value, first.data, first.require_value(), first.size) == (b"tea", b"tea", b"tea", 3)
    assert (first.key, first.key_bytes, first.properties) == ("alice", b"alice", {"a": "b"})
    assert (first.event_time, first.redelivery_count, first.encryption) == (event_time, 0, None)
    assert (first.topic, first.producer_name) == ("topic://public/default/orders", "bench")
    assert first.sequence_id < second.sequence_id
    assert first.id < second.id
    assert first.publish_time <= second.publish_time
    assert (second.value, second.data, second.key_bytes) == (None, b"", b"\xff")
    with pytest.raises(SchemaError, match="tombstone"):
        second.require_value()


async def test_a_bench_encodes_what_handlers_publish() -> None:
    other = App("pulsar://127.0.0.1:1")

    @other.subscriber("orders", subscription="s")
    async def pass_on(message: Message[bytes]) -> None:
        await other.publish("typed", Purchase("alice", 3), schema=Schema.json(Purchase))
        await other.publish("plain", {"not": "bytes"})

    async with other.bench() as bench:
        with pytest.raises(TypeError, match="needs a schema"):
            await bench.deliver("orders", b"tea")
        assert bench.published == [BenchPublished("topic://public/default/typed", Purchase("alice", 3), None)]


async def test_the_exception_of_a_handler_reaches_the_test() -> None:
    steps.clear()
    async with app.bench() as bench:
        with pytest.raises(ValueError, match="negative"):
            await bench.deliver("orders", Purchase("bob", -1))
    assert steps == ["open", "charge bob", "close"]


async def test_the_example_of_the_guide_runs() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "consuming.md").read_text()
    code = guide.partition("## Handlers of an application")[2].partition("```python\n")[2].partition("```")[0]
    module = ModuleType("guide")
    sys.modules["guide"] = module
    try:
        exec(code, vars(module))
        names: dict[str, Any] = vars(module)
        async with names["app"].bench() as bench:
            await bench.deliver("orders", names["Order"]("alice", 3), key="alice")
            assert bench.published[0].value == b"alice paid 3"
    finally:
        del sys.modules["guide"]


async def test_mistakes_are_named() -> None:
    async with app.bench() as bench:
        with pytest.raises(InvalidConfigurationError, match="no handler subscribes to"):
            await bench.deliver("order", b"")
    with pytest.raises(InvalidConfigurationError, match="publish from a handler"):
        await app.publish("orders", b"")
    with pytest.raises(InvalidConfigurationError, match="already has a handler"):
        app.subscriber("orders", subscription="billing")
    with pytest.raises(InvalidConfigurationError, match="no handlers"):
        await App("pulsar://127.0.0.1:1").run()
    with pytest.raises(InvalidConfigurationError, match="kind must be one of"):
        HandlerOptions(kind="queues")  # type: ignore[arg-type]
    with pytest.raises(InvalidNameError, match="subscription"):
        app.subscriber("orders", subscription="")


async def test_a_handler_that_is_a_plain_function_is_named() -> None:
    plain = App("pulsar://127.0.0.1:1")

    @plain.subscriber("orders", subscription="billing")
    def charge(message: Message[bytes]) -> Any:
        return None

    async with plain.bench() as bench:
        with pytest.raises(InvalidConfigurationError, match="async def"):
            await bench.deliver("orders", b"")


@pytest.mark.real_time
async def test_a_run_raises_the_error_of_a_consumer_itself() -> None:
    alone = App("pulsar://127.0.0.1:1", operation_timeout=0.2)

    @alone.subscriber("orders", subscription="billing")
    async def charge(message: Message[bytes]) -> None: ...

    with pytest.raises(UnreachableError):
        await alone.run()
