"""Rights and tokens that end under open producers and consumers, with the real broker on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anabranch import AsyncClient, AuthenticationToken, Checkpoint
from anabranch.errors import AuthenticationError, AuthorizationError
from anabranch.model.names import TopicName
from tests.harness.cluster import Brokers
from tests.harness.rights import RIGHTS, grant
from tests.harness.security import token_for

TOPIC = "topic://shop/prod/orders"
BOTH = {"auth_policies": {"namespace_auth": {"app": ["produce", "consume"]}}}
NONE: dict[str, Any] = {"auth_policies": {"namespace_auth": {}}}
OPERATION_S = 20.0

OPENINGS: dict[str, Callable[[AsyncClient], Awaitable[Any]]] = {
    "producer": lambda client: client.create_producer(TOPIC, send_timeout=OPERATION_S),
    "stream": lambda client: client.subscribe_stream(TOPIC, "s", ack_receipts=True),
    "queue": lambda client: client.subscribe_queue(TOPIC, "q", ack_receipts=True),
    "checkpoints": lambda client: client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest()),
    "group": lambda client: client.create_checkpoint_consumer(TOPIC, start=Checkpoint.earliest(), group="g"),
}

pytestmark = pytest.mark.brokers(workers=2, **RIGHTS)


async def prepare(brokers: Brokers, token: Callable[[], str] = lambda: token_for("app")) -> AsyncClient:
    """Make a topic on both brokers, and a client that may use it."""
    await grant(brokers, "shop/prod", BOTH)
    await brokers[0].controllers.create_topic(TopicName.parse(TOPIC), 4)
    return brokers.client(operation_timeout=OPERATION_S, authentication=AuthenticationToken(token))


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "refuses the role" in line]


async def publish_until_refused(producer: Any) -> None:
    for number in range(10_000):
        await producer.send(b"value", key=f"key-{number}")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("what", OPENINGS)
async def test_a_revoked_right_ends_each_kind_within_its_timeout(
    brokers: Brokers, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "anabranch.client")
    async with await prepare(brokers) as client:
        opened = await OPENINGS[what](client)
        waiting = asyncio.ensure_future(
            publish_until_refused(opened) if what == "producer" else opened.receive()
        )
        await asyncio.sleep(1)
        assert not waiting.done()
        await grant(brokers, "shop/prod", NONE)
        with pytest.raises(AuthorizationError):
            async with asyncio.timeout(OPERATION_S):
                await waiting
        await asyncio.sleep(60)
        assert len(refusals(caplog)) == 1, caplog.messages
        for method in ("flush", "flush_acks"):
            if hasattr(opened, method):
                async with asyncio.timeout(OPERATION_S + 1):
                    await asyncio.gather(getattr(opened, method)(), return_exceptions=True)
        async with asyncio.timeout(1):
            await opened.close()


async def test_a_producer_goes_on_when_its_right_is_granted_again(brokers: Brokers) -> None:
    async with await prepare(brokers) as client:
        producer = await OPENINGS["producer"](client)
        await producer.send(b"before", key="k")
        await grant(brokers, "shop/prod", NONE)
        with pytest.raises(AuthorizationError):
            async with asyncio.timeout(OPERATION_S):
                await publish_until_refused(producer)
        await grant(brokers, "shop/prod", BOTH)
        outcome: Any = None
        async with asyncio.timeout(OPERATION_S):
            while True:
                # Each broker reads the grants by itself.
                (outcome,) = await asyncio.gather(producer.send(b"after", key="k"), return_exceptions=True)
                if not isinstance(outcome, AuthorizationError):
                    break
                await asyncio.sleep(0.1)
        assert outcome.segment in range(4)


async def test_a_lost_right_of_one_kind_leaves_the_other_alone(brokers: Brokers) -> None:
    async with await prepare(brokers) as client:
        producer = await OPENINGS["producer"](client)
        consumer = await OPENINGS["stream"](client)
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(1)
        await grant(brokers, "shop/prod", {"auth_policies": {"namespace_auth": {"app": ["produce"]}}})
        with pytest.raises(AuthorizationError):
            async with asyncio.timeout(OPERATION_S):
                await waiting
        async with asyncio.timeout(OPERATION_S):
            for key in range(20):
                await producer.send(b"value", key=str(key))


@pytest.mark.parametrize("what", OPENINGS)
@pytest.mark.brokers(workers=2, **RIGHTS, authentication_refresh_check_s=1.0)
async def test_a_token_that_is_never_renewed_ends_each_kind(
    brokers: Brokers, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "anabranch.client")
    short = token_for("app", exp=brokers.clock.wall_ms() // 1000 + 30)
    async with await prepare(brokers, lambda: short) as client:
        opened = await OPENINGS[what](client)
        waiting = asyncio.ensure_future(
            publish_until_refused(opened) if what == "producer" else opened.receive()
        )
        with pytest.raises(AuthenticationError):
            async with asyncio.timeout(30 + OPERATION_S):
                await waiting
        assert len(refusals(caplog)) == 1, caplog.messages
        assert short not in caplog.text
