"""Answers of Pulsar's admin API that a control process must tell apart."""

from __future__ import annotations

import asyncio
import socket

import pytest

from anabranch.control.pulsar_admin import PulsarAdmin, is_moving
from anabranch.errors import ConnectError, InvalidConfigurationError


@pytest.mark.parametrize(
    ("answer", "moving"),
    [
        ("Can't find owner for topic persistent://public/default/t.segment-0000-ffff-3", True),
        ("Failed to find ownership for topic:persistent://public/default/t", True),
        ("Topic has active producers/subscriptions", False),
    ],
)
def test_a_topic_without_a_broker_is_no_mistake_of_the_caller(answer: str, moving: bool) -> None:
    assert is_moving(InvalidConfigurationError(answer)) == moving


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
