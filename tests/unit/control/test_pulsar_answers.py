"""Answers of Pulsar's admin API that a control process must tell apart."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest

from anabranch.control import pulsar_admin
from anabranch.control.pulsar_admin import PulsarAdmin, passes
from anabranch.errors import (
    AnabranchError,
    ConflictError,
    ConnectError,
    InvalidConfigurationError,
    NotAllowedError,
    ServiceNotReadyError,
)
from anabranch.model.names import TopicName

TOPIC = TopicName.parse("persistent://public/default/t.segment-0000-ffff-3")
NOT_SERVED = "Namespace bundle (public/default/0x40_0x80) for topic (t) not served by this instance"
STACK = f"\n --- An unexpected error occurred in the server ---\n\nMessage: {NOT_SERVED}\n\nStacktrace:\n\nx"


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (InvalidConfigurationError(f"Can't find owner for topic {TOPIC}"), True),
        (InvalidConfigurationError("Failed to find ownership for topic:persistent://public/default/t"), True),
        (InvalidConfigurationError("Failed for Subscription Busy: Failed to fence subscription"), True),
        (InvalidConfigurationError("Topic has active producers/subscriptions"), False),
        (ConflictError("Concurrent modification"), True),
        (ConflictError("This topic already exists"), False),
        (ConflictError("Subscription already exists for topic"), False),
        (NotAllowedError("Topic level policies is disabled"), False),
    ],
)
def test_a_failure_that_passes_is_no_mistake_of_the_caller(error: AnabranchError, passing: bool) -> None:
    assert passes(error) == passing


class PulsarAnswers:
    """A server that answers each request with the next of these statuses and reasons."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(" ".join(head.decode().split()[:2]))
        status, reason = self._answers.pop(0)
        body = json.dumps({"reason": reason}).encode()
        writer.write(
            b"HTTP/1.1 %d x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))
        )
        writer.write(body)
        await writer.drain()
        writer.close()


@pytest.mark.real_time
async def test_a_broker_that_gives_a_topic_up_is_asked_again_later() -> None:
    """Pulsar 4.0.7 answers so while it moves the bundle of a topic, or of its own topic of policies."""
    pulsar = PulsarAnswers((500, STACK), (409, "Concurrent modification"), (409, "This topic already exists"))
    server = await asyncio.start_server(pulsar.serve, "127.0.0.1", 0)
    admin = PulsarAdmin([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"])
    try:
        with pytest.raises(ServiceNotReadyError) as failed:
            await admin.terminate(TOPIC)
        assert str(failed.value) == f"Apache Pulsar failed: {NOT_SERVED}"
        with pytest.raises(ServiceNotReadyError, match="Concurrent modification"):
            await admin.create(TOPIC, {})
        await admin.create(TOPIC, {})
    finally:
        await admin.close()
        server.close()


@pytest.mark.real_time
@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.set_properties(TOPIC, {"ready": "true"}),
        lambda admin: admin.internals(TOPIC),
        lambda admin: admin.stats(TOPIC),
    ],
)
async def test_a_call_without_an_answer_is_made_again_at_the_next_address(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[PulsarAdmin], Awaitable[object]]
) -> None:
    """Pulsar 4.0.7 leaves such calls without an answer if it unloads the topic meanwhile."""
    monkeypatch.setattr(pulsar_admin, "ANSWER_S", 0.05)
    silent = socket.create_server(("127.0.0.1", 0))
    pulsar = PulsarAnswers((200, "the state of a topic"))
    server = await asyncio.start_server(pulsar.serve, "127.0.0.1", 0)
    ports = silent.getsockname()[1], server.sockets[0].getsockname()[1]
    admin = PulsarAdmin([f"http://127.0.0.1:{port}" for port in ports])
    try:
        with pytest.raises(ServiceNotReadyError, match="did not answer"):
            await call(admin)
        await call(admin)
        assert len(pulsar.asked) == 1
    finally:
        await admin.close()
        server.close()
        silent.close()


@pytest.mark.real_time
async def test_calls_that_fail_together_at_one_address_go_to_the_next_one_together() -> None:
    """Two calls would otherwise go round the two addresses, back to the dead one."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split()[1].decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]")
        await writer.drain()
        writer.close()

    dead = socket.socket()
    dead.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    admin = PulsarAdmin([f"http://127.0.0.1:{dead.getsockname()[1]}", f"http://127.0.0.1:{port}"])
    try:
        failed = await asyncio.gather(
            *(admin.topics(f"public/{n}") for n in range(2)), return_exceptions=True
        )
        assert [type(error) for error in failed] == [ConnectError] * 2
        assert await admin.topics("public/default") == []
        assert asked == ["/admin/v2/persistent/public/default"]
    finally:
        await admin.close()
        server.close()
        dead.close()
