"""Composition root: wire one broker process from its configuration, run it, stop it.

Everything else is given its parts from outside; here they are chosen. What a broker needs in order to listen
is imported first, the HTTP stack after it listens. Has no behaviour of its own beyond start and stop.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from anabranch.broker.broker import Broker
from anabranch.clock import Clock, SystemClock
from anabranch.config import BrokerConfig
from anabranch.errors import ConflictError
from anabranch.failpoints import Failpoints, NoFailpoints, ProcessFailpoints
from anabranch.ledger.disk import OsDisk
from anabranch.ledger.files import FileStorage
from anabranch.metadata.sqlite import SqliteStore

log = logging.getLogger(__name__)

METADATA_FILE = "metadata.db"
STORES = "stores"
HTTP_BACKLOG = 128


def run(config: BrokerConfig) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(config))
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(config: BrokerConfig) -> None:
    """Run one broker; returns after a clean stop."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    listener = _listen(config.host, config.http_port)
    store = SqliteStore(Path(config.data) / METADATA_FILE)
    clock = SystemClock()
    broker = _make_broker(config, store, clock)
    try:
        await _start(broker, config)
        http_url = f"http://{config.advertised_host or config.host}:{listener.getsockname()[1]}"
        print(f"ready {broker.url} {http_url}", flush=True)
        # Objects that live as long as the process need not be looked at by every collection, and entries on
        # their way come by the thousand: looking at them every 700 allocations took a quarter of the CPU.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)
        await _serve_http(broker, clock, listener, http_url, stopping)
    finally:
        listener.close()
        await broker.stop()
        await store.close()


def _make_broker(config: BrokerConfig, store: SqliteStore, clock: Clock) -> Broker:
    def storage_of(number: int) -> FileStorage:
        return FileStorage(
            OsDisk(Path(config.data) / STORES / str(number)),
            clock=clock,
            cache_bytes=config.cache_bytes,
            journal_bytes_max=config.journal_bytes_max,
        )

    return Broker(config, storage_of, store, clock, random.Random(), _failpoints())


def _failpoints() -> Failpoints:
    text = os.environ.get("ANABRANCH_FAILPOINTS", "")
    return ProcessFailpoints.from_text(text) if text else NoFailpoints()


async def _start(broker: Broker, config: BrokerConfig) -> None:
    try:
        await broker.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _in_use(config.host, config.port, "--port") from error
        raise


async def _serve_http(
    broker: Broker, clock: Clock, listener: socket.socket, http_url: str, stopping: asyncio.Event
) -> None:
    # The HTTP stack takes longer to import than all the rest. Its socket listens already: a request that
    # comes now waits a moment, and the event loop goes on serving.
    server_module = await asyncio.to_thread(importlib.import_module, "anabranch.admin.server")
    server = server_module.AdminServer(broker, clock, listener, http_url)
    await server.start()
    try:
        await stopping.wait()
        log.info("stopping")
    finally:
        await server.stop()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=HTTP_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _in_use(host, port, "--http-port") from error
        raise
    listener.setblocking(False)
    return listener


def _in_use(host: str, port: int, option: str) -> ConflictError:
    return ConflictError(
        f"port {port} on {host} is in use; stop the process that has it, or choose another with {option} "
        "(0 picks a free one)"
    )
