"""A role that may not: opening fails at once, and open producers and consumers end with one log line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anabranch import AsyncClient, AuthenticationToken, Checkpoint
from anabranch.errors import AuthenticationError, AuthorizationError
from anabranch.protocol.commands import Send
from anabranch.protocol.pb import pulsar_pb2 as pb
from simulation.world.faults import SimClock
from simulation.world.loop import SimLoop
from simulation.world.network import SimNetwork
from tests.harness.hostile import HONEST, URL, Answer
from tests.harness.refusing import RefusingBroker, numbered, refusal
from tests.harness.segments import NAME

TIMEOUT_S = 20.0
NO_RIGHT = pb.AuthorizationError


def looked_up(command: Any) -> Answer:
    response = pb.CommandLookupTopicResponse
    return [response(request_id=command.request_id, response=response.Failed, error=NO_RIGHT, message="no")]


def refused_watch(session: int) -> pb.CommandScalableTopicUpdate:
    return pb.CommandScalableTopicUpdate(session_id=session, error=NO_RIGHT, message="no")


def registered(command: Any) -> Answer:
    response = pb.CommandScalableTopicSubscribeResponse
    return [response(request_id=command.request_id, error=NO_RIGHT, message="no")]


REFUSALS: dict[type, Callable[[Any], Answer]] = {
    pb.CommandScalableTopicLookup: lambda c: [refused_watch(c.session_id)],
    pb.CommandLookupTopic: looked_up,
    pb.CommandProducer: lambda c: [refusal(c.request_id, NO_RIGHT)],
    pb.CommandSubscribe: lambda c: [refusal(c.request_id, NO_RIGHT)],
    pb.CommandScalableTopicSubscribe: registered,
}
"""By the kind of a command: the answer that refuses it because the role lacks a right."""


class RightsBroker(RefusingBroker):
    """Serves until `revoke`; then it closes producers, consumers and watches, and refuses them."""

    def __init__(self) -> None:
        self.serves = False
        """Whether messages and receipts come; a test that waits for a refusal wants none."""
        self._revoked: set[type] = set()
        self._opened: list[Any] = []
        super().__init__(
            {
                **{kind: self._guarded(kind) for kind in REFUSALS},
                pb.CommandFlow: self._served,
                Send: self._served,
            }
        )

    def _served(self, command: Any) -> Answer:
        return HONEST[type(command)](command) if self.serves else []

    def _guarded(self, kind: type) -> Callable[[Any], Answer]:
        def answer(command: Any) -> Answer:
            if kind in self._revoked:
                return REFUSALS[kind](command)
            self._opened.append(command)
            return HONEST[kind](command)

        return answer

    def revoke_watches(self) -> None:
        """Refuse layouts, and close nothing else."""
        self._opened = [c for c in self._opened if isinstance(c, pb.CommandScalableTopicLookup)]
        self.revoke(pb.CommandScalableTopicLookup)

    def revoke(self, *kinds: type) -> None:
        self._revoked.update(kinds)
        for command in self._opened:
            if isinstance(command, pb.CommandProducer):
                self.push(pb.CommandCloseProducer(producer_id=command.producer_id, request_id=2**63))
            elif isinstance(command, (pb.CommandSubscribe, pb.CommandScalableTopicSubscribe)):
                self.push(pb.CommandCloseConsumer(consumer_id=command.consumer_id, request_id=2**63))
            elif isinstance(command, pb.CommandScalableTopicLookup):
                self.push(refused_watch(command.session_id))


Opening = Callable[[AsyncClient], Awaitable[Any]]

PRODUCERS: dict[str, Opening] = {
    "producer": lambda client: client.create_producer(NAME),
    "named producer": lambda client: client.create_producer(NAME, name="me"),
    "exclusive producer": lambda client: client.create_producer(NAME, access_mode="exclusive"),
}
CONSUMERS: dict[str, Opening] = {
    "stream": lambda client: client.subscribe_stream(NAME, "s"),
    "queue": lambda client: client.subscribe_queue(NAME, "q"),
    "checkpoints": lambda client: client.create_checkpoint_consumer(NAME, start=Checkpoint.earliest()),
    "group": lambda client: client.create_checkpoint_consumer(NAME, start=Checkpoint.earliest(), group="g"),
}


@pytest.fixture
async def broker(loop: SimLoop) -> RightsBroker:
    SimNetwork(loop)
    broker = RightsBroker()
    await broker.start()
    return broker


@pytest.fixture
async def client(loop: SimLoop, broker: RightsBroker) -> AsyncClient:
    return AsyncClient(
        URL,
        operation_timeout=TIMEOUT_S,
        connect_timeout=TIMEOUT_S,
        authentication=AuthenticationToken(numbered()),
        clock=SimClock(loop),
        rng=loop.random("client"),
    )


async def use(opened: Any) -> Any:
    """Wait for a message, or for the receipt of one."""
    return await (opened.receive() if hasattr(opened, "receive") else opened.send(b"value"))


@pytest.mark.parametrize(
    ("what", "kinds"),
    [
        *((what, (pb.CommandScalableTopicLookup,)) for what in (*PRODUCERS, *CONSUMERS)),
        *((what, (pb.CommandProducer,)) for what in PRODUCERS),
        *((what, (pb.CommandSubscribe,)) for what in CONSUMERS),
        *((what, (pb.CommandLookupTopic,)) for what in (*PRODUCERS, *CONSUMERS)),
        ("stream", (pb.CommandScalableTopicSubscribe,)),
        ("group", (pb.CommandScalableTopicSubscribe,)),
    ],
)
async def test_a_missing_right_is_raised_at_once(
    loop: SimLoop, broker: RightsBroker, client: AsyncClient, what: str, kinds: tuple[type, ...]
) -> None:
    broker.revoke(*kinds)
    began = loop.time()
    async with client:
        with pytest.raises(AuthorizationError):
            await use(await (PRODUCERS | CONSUMERS)[what](client))
        assert loop.time() - began < 1


@pytest.mark.parametrize("kind", [pb.CommandProducer, pb.CommandScalableTopicLookup, pb.CommandLookupTopic])
@pytest.mark.parametrize("what", PRODUCERS)
async def test_a_revoked_right_ends_pending_sends(
    broker: RightsBroker, client: AsyncClient, what: str, kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    async with client:
        producer = await PRODUCERS[what](client)
        sends = [asyncio.ensure_future(producer.send(b"value", key=str(n))) for n in range(5)]
        await asyncio.sleep(1)
        with caplog.at_level(logging.WARNING, "anabranch.client"):
            broker.revoke(kind, pb.CommandProducer)
            async with asyncio.timeout(5):
                failures = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(failure) for failure in failures] == [AuthorizationError] * 5
        # A later message fails at once, too, with no further log line.
        with pytest.raises(AuthorizationError):
            async with asyncio.timeout(5):
                await producer.send(b"later")
        await asyncio.sleep(60)
        lines = [line for line in caplog.messages if "refuses" in line]
        assert len(lines) == 1, caplog.messages
        assert "were not stored" not in caplog.text


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        *((what, pb.CommandSubscribe) for what in CONSUMERS),
        *((what, pb.CommandLookupTopic) for what in CONSUMERS),
        *((what, pb.CommandScalableTopicLookup) for what in CONSUMERS),
        ("stream", pb.CommandScalableTopicSubscribe),
        ("group", pb.CommandScalableTopicSubscribe),
    ],
)
async def test_a_revoked_right_ends_waiting_receives(
    broker: RightsBroker, client: AsyncClient, what: str, kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    async with client:
        consumer = await CONSUMERS[what](client)
        receives = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
        await asyncio.sleep(1)
        with caplog.at_level(logging.WARNING, "anabranch.client"):
            broker.revoke(kind)
            if kind is pb.CommandLookupTopic:
                # A client that knows the owner of a segment does not look it up.
                broker.drop()
            async with asyncio.timeout(5):
                failures = await asyncio.gather(*receives, return_exceptions=True)
        assert [type(failure) for failure in failures] == [AuthorizationError] * 3
        with pytest.raises(AuthorizationError):
            await consumer.receive()
        await asyncio.sleep(60)
        lines = [line for line in caplog.messages if "refuses" in line]
        assert len(lines) == 1, caplog.messages
        async with asyncio.timeout(1):
            await consumer.close()


@pytest.mark.parametrize("what", ["producer", *CONSUMERS])
async def test_an_open_object_outlives_a_token_that_expired(
    broker: RightsBroker, client: AsyncClient, what: str
) -> None:
    async with client:
        opened = await (PRODUCERS | CONSUMERS)[what](client)
        waiting = asyncio.ensure_future(use(opened))
        await asyncio.sleep(1)
        known = len(broker.shown)
        broker.accepts = lambda token: int(token.removeprefix(b"token-")) > known + 4
        broker.serves = True
        broker.drop()
        async with asyncio.timeout(TIMEOUT_S / 2):
            assert await waiting
        # The credentials were fresh each time.
        assert len(set(broker.shown)) == len(broker.shown) > known + 4


async def test_a_refused_watch_leaves_attached_segments_alone(
    broker: RightsBroker, client: AsyncClient
) -> None:
    """A broker that refuses the watch does not speak for those that serve the segments."""
    async with client:
        producer = await PRODUCERS["producer"](client)
        waiting = asyncio.ensure_future(producer.send(b"value"))
        await asyncio.sleep(1)
        broker.revoke_watches()
        await asyncio.sleep(5)
        assert not waiting.done()
        waiting.cancel()


async def test_refusals_with_a_success_between_them_do_not_add_up(
    broker: RightsBroker, client: AsyncClient
) -> None:
    async with client:
        consumer = await CONSUMERS["stream"](client)
        waiting = asyncio.ensure_future(consumer.receive())
        for _ in range(5):
            broker.accepts = lambda _: False
            broker.drop()
            await asyncio.sleep(TIMEOUT_S / 4)
            broker.accepts = lambda _: True
            await asyncio.sleep(TIMEOUT_S / 2)
        broker.serves = True
        broker.drop()
        async with asyncio.timeout(TIMEOUT_S):
            assert await waiting


@pytest.mark.parametrize("what", ["producer", *CONSUMERS])
async def test_an_open_object_ends_when_its_credentials_are_refused_for_long(
    loop: SimLoop, broker: RightsBroker, client: AsyncClient, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client:
        opened = await (PRODUCERS | CONSUMERS)[what](client)
        waiting = asyncio.ensure_future(use(opened))
        await asyncio.sleep(1)
        broker.accepts = lambda _: False
        with caplog.at_level(logging.WARNING, "anabranch.client"):
            broker.drop()
            began = loop.time()
            with pytest.raises(AuthenticationError):
                await waiting
        assert TIMEOUT_S / 2 <= loop.time() - began < TIMEOUT_S
        # One broker is not flooded meanwhile.
        assert len(broker.shown) < 60
        lines = [line for line in caplog.messages if "refuses" in line]
        assert len(lines) == 1, caplog.messages
        if what == "producer":
            # A producer is not used up: it sends again once its credentials are accepted.
            broker.accepts = lambda _: True
            broker.serves = True
            async with asyncio.timeout(1):
                await opened.send(b"again")
