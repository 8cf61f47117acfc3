"""Handlers of `run` that are coroutine functions, and those that only look like one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from anabranch import Interceptor, Message
from anabranch.errors import InvalidConfigurationError
from tests.harness.cluster import TOPIC, Brokers


class Surrounding(Interceptor):
    """Surrounds each handler."""

    @contextmanager
    def handling(self, message: Message[Any]) -> Iterator[None]:
        yield


@pytest.mark.parametrize("interceptors", [(), (Interceptor(),), (Surrounding(),)])
async def test_a_plain_function_as_a_handler_ends_the_run_and_loses_nothing(
    brokers: Brokers, interceptors: Any
) -> None:
    def handle(message: Message[bytes]) -> Any:
        return None

    async with brokers.client() as client:
        await (await client.create_producer(TOPIC)).send_many([b"0", b"1"], keys=["k", "k"])
        consumer = await client.subscribe_stream(
            TOPIC, "s", initial_position="earliest", interceptors=interceptors
        )
        with pytest.raises(InvalidConfigurationError, match="async def"):
            await consumer.run(handle)
        with pytest.raises(InvalidConfigurationError, match="async def"):
            await consumer.run(handle, timeout=5)
        assert [(await consumer.receive(timeout=5)).data for _ in range(2)] == [b"0", b"1"]


async def test_a_handler_with_a_yield_ends_the_run_and_loses_nothing(brokers: Brokers) -> None:
    def generator(message: Message[bytes]) -> Any:
        yield

    async def async_generator(message: Message[bytes]) -> Any:
        yield

    async with brokers.client() as client:
        await (await client.create_producer(TOPIC)).send(b"0")
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        for handler in (generator, async_generator):
            with pytest.raises(InvalidConfigurationError, match="has a `yield`"):
                await consumer.run(handler, stop=5)
        assert (await consumer.receive(timeout=5)).data == b"0"


async def test_an_object_that_cannot_be_called_is_no_handler(brokers: Brokers) -> None:
    async with brokers.client() as client:
        consumer = await client.subscribe_stream(TOPIC, "s")
        handler: Any = None
        with pytest.raises(InvalidConfigurationError, match="must be a function, not None"):
            await consumer.run(handler, stop=1)


async def test_any_call_that_returns_an_awaitable_is_a_handler(brokers: Brokers) -> None:
    async with brokers.client() as client:
        await (await client.create_producer(TOPIC)).send_many([b"0", b"1"], keys=["k", "k"])
        consumer = await client.subscribe_stream(TOPIC, "s", initial_position="earliest")
        assert (await consumer.run(lambda _: asyncio.create_task(asyncio.sleep(0)), stop=1)).handled == 2
