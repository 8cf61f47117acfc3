"""Handlers without a broker, as the tests of an application run them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from anabranch import Message, Schema
from anabranch.apps import App, BenchPublished, HandlerOptions
from anabranch.errors import InvalidConfigurationError


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
    with pytest.raises(InvalidConfigurationError, match="has a handler already"):
        app.subscriber("orders", subscription="billing")
    with pytest.raises(InvalidConfigurationError, match="no handlers"):
        await App("pulsar://127.0.0.1:1").run()
