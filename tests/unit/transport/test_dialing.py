from __future__ import annotations

import asyncio

import pytest
import uvloop

from anabranch.errors import (
    AnabranchError,
    AuthenticationError,
    ConnectError,
    OperationTimeoutError,
    RemoteProtocolError,
)
from anabranch.protocol.commands import NO_ID, encode
from anabranch.protocol.connection import ClientMachine
from anabranch.protocol.pb import pulsar_pb2 as pb
from anabranch.transport.dialing import dial
from anabranch.transport.pump import Pump
from simulation.world.loop import SimLoop
from tests.unit.transport.recorder import PumpRecorder


async def test_dialling_an_address_without_a_server_is_a_connect_error(loop: SimLoop) -> None:
    with pytest.raises(ConnectError, match="broker:1"):
        await dial("broker", 1, lambda: ClientMachine(now=loop.time()), PumpRecorder(), timeout_s=10)


async def dial_against(
    loop: SimLoop, first_answer: bytes | None, expected: type[AnabranchError], then_close: bool = False
) -> None:
    class Rude(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            if first_answer:
                transport.write(first_answer)
            if then_close:
                transport.close()

    listening = await loop.create_server(Rude, "broker", 1)
    handler = PumpRecorder()
    started = loop.time()
    with pytest.raises(expected):
        await dial("broker", 1, lambda: ClientMachine(now=loop.time()), handler, timeout_s=10)
    assert loop.time() - started <= 10.1
    await asyncio.sleep(1)
    assert handler.log == []
    listening.close()


async def test_a_broker_that_refuses_says_why(loop: SimLoop) -> None:
    refusal = pb.CommandError(request_id=NO_ID, error=pb.AuthenticationError, message="unknown client")
    await dial_against(loop, encode(refusal), AuthenticationError)


async def test_a_broker_that_speaks_something_else_is_found_out(loop: SimLoop) -> None:
    await dial_against(loop, b"HTTP/1.1 400 Bad Request\r\n\r\n", RemoteProtocolError)


async def test_a_broker_that_hangs_up_is_a_connect_error(loop: SimLoop) -> None:
    await dial_against(loop, None, ConnectError, then_close=True)


async def test_a_broker_that_says_nothing_times_out(loop: SimLoop) -> None:
    await dial_against(loop, None, OperationTimeoutError)


async def test_a_cancelled_dial_leaves_nothing_open(loop: SimLoop) -> None:
    server = PumpRecorder()
    listening = await loop.create_server(asyncio.Protocol, "broker", 1)
    dialling = asyncio.ensure_future(
        dial("broker", 1, lambda: ClientMachine(now=loop.time()), server, timeout_s=10)
    )
    await asyncio.sleep(5)
    dialling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dialling
    assert loop.network is not None
    await asyncio.sleep(1)
    assert loop.network.reset(loop.network.link("test", "broker")) == 0
    listening.close()


async def test_a_dial_that_is_cancelled_as_the_broker_answers_leaves_nothing_open(loop: SimLoop) -> None:
    class Polite(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(encode(pb.CommandConnected(server_version="test", protocol_version=21)))

    class CancellingRecorder(PumpRecorder):
        def connected(self, pump: Pump) -> None:
            super().connected(pump)
            dialling.cancel()

    listening = await loop.create_server(Polite, "broker", 1)
    handler = CancellingRecorder()
    dialling = asyncio.ensure_future(
        dial("broker", 1, lambda: ClientMachine(now=loop.time()), handler, timeout_s=10)
    )
    with pytest.raises(asyncio.CancelledError):
        await dialling
    await asyncio.sleep(1)
    assert handler.pump is not None
    assert handler.pump.closed
    listening.close()


def test_a_dial_cancelled_while_its_connection_is_made_writes_nothing_on_uvloop() -> None:
    troubles: list[str] = []
    dialling: asyncio.Future[Pump]

    class Cancelling(ClientMachine):
        def start(self) -> bytes:
            dialling.cancel()
            return super().start()

    async def scenario() -> None:
        nonlocal dialling
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: troubles.append(context["message"]))
        async with await loop.create_server(asyncio.Protocol, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            dialling = asyncio.ensure_future(
                dial("127.0.0.1", port, lambda: Cancelling(now=loop.time()), PumpRecorder(), timeout_s=10)
            )
            with pytest.raises(asyncio.CancelledError):
                await dialling
            await asyncio.sleep(0.01)

    uvloop.run(scenario())
    assert troubles == []
