"""Runs a broker that its composition root has built: start, serve binary and HTTP ports, stop.

The modules that a broker needs in order to listen are imported first, and the HTTP stack after it listens.
This module must not know storages or metadata stores.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from anabranch.broker.broker import Broker
from anabranch.broker.cluster.endpoint import Endpoint, PeerTls
from anabranch.config.broker import BrokerConfig
from anabranch.security.tls import BrokerTls
from anabranch.server.listening import OPTIONS, Listeners
from anabranch.transport.accepting import Acceptor, TlsHandshake
from anabranch.transport.door import Door
from anabranch.transport.pump import Pump

log = logging.getLogger(__name__)

TIDY_S = 1.0
TIDY_LOGS = 64
"""A full garbage collection runs after this many removed logs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """One broker process: its number, its listening sockets, and its link to the process that started it."""

    id: int
    listeners: Listeners
    ready: Callable[[], None]
    parent: socket.socket | None = None
    """Readable once the process that started this one has ended."""


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


async def attend(broker: Broker, worker: Worker, tls: BrokerTls | None, stopping: asyncio.Event) -> int:
    """Start a broker, serve until `stopping` is set or the broker fails, stop it; returns the exit code."""
    loop, config = asyncio.get_running_loop(), broker.config
    if worker.parent is not None:
        loop.add_reader(worker.parent, stopping.set)
    beside = [
        asyncio.ensure_future(_stop_when_failed(broker, stopping)),
        asyncio.ensure_future(_tidy(broker)),
    ]
    if tls is not None:
        beside.append(asyncio.ensure_future(tls.follow(config.tls_refresh_s)))
    try:
        if await _unless(stopping, broker.start()):
            worker.ready()
            # Objects that live as long as the process are excluded from collections, and collections are
            # rare: at the default threshold of 700 allocations they took a quarter of the CPU under load.
            gc.collect()
            gc.freeze()
            gc.set_threshold(10_000, 20, 100)
            await _serve_http(broker, worker.listeners, stopping, tls)
    finally:
        for task in beside:
            task.cancel()
        if worker.parent is not None:
            loop.remove_reader(worker.parent)
        for listener in (*worker.listeners.of("http"), *worker.listeners.of("https")):
            listener.close()
        await broker.stop()
        await broker.gate.audit.close()
    return int(broker.failed.is_set())


async def _stop_when_failed(broker: Broker, stopping: asyncio.Event) -> None:
    await broker.failed.wait()
    stopping.set()


async def _tidy(broker: Broker) -> None:
    """Collect removed logs, which are reference cycles, and end links proven with an expired secret."""
    collected = 0
    while True:
        await asyncio.sleep(TIDY_S)
        broker.links.secret.refresh()
        if broker.logs.dropped >= collected + TIDY_LOGS:
            collected = broker.logs.dropped
            gc.collect()


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` to its end, or cancel it when `stopping` is set. Returns whether it was finished."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return not task.cancelled()
    finally:
        stopped.cancel()


def endpoint_of(config: BrokerConfig, listeners: Listeners, tls: BrokerTls | None) -> Endpoint:
    async def accept(door: Door[Pump]) -> list[Acceptor[Pump]]:
        made = [Acceptor(listener, door) for listener in listeners.of("pulsar")]
        if tls is not None:
            handshake = TlsHandshake(tls.server, config.handshake_timeout_s)
            made += [Acceptor(listener, door, handshake) for listener in listeners.of("pulsar+ssl")]
        return made

    urls = {scheme: listeners.own_url(config, scheme) for scheme in OPTIONS}
    return Endpoint(
        urls["pulsar"],
        urls["http"],
        accept,
        url_tls=urls["pulsar+ssl"],
        http_url_tls=urls["https"],
        peer_tls=None if tls is None else PeerTls(tls.peers, preferred=config.broker_client_tls),
    )


async def _serve_http(
    broker: Broker, listeners: Listeners, stopping: asyncio.Event, tls: BrokerTls | None
) -> None:
    # The HTTP stack takes longer to import than all other modules together. Its sockets listen already, so
    # early requests wait in the backlog, and a thread imports it while the event loop serves.
    server_module = await asyncio.to_thread(importlib.import_module, "anabranch.admin.http.server")
    server = server_module.AdminServer(broker, listeners.of("http"))
    if tls is not None:
        handshake = TlsHandshake(tls.server, broker.config.http_request_timeout_s)
        server.listen_tls(listeners.of("https"), handshake)
    await server.start()
    try:
        await stopping.wait()
        log.info("stopping")
    finally:
        await server.stop()
