"""Composition root: build one broker process from its configuration, run it, stop it.

All other modules receive their parts from outside; this module chooses them. The modules that a broker needs
in order to listen are imported first, and the HTTP stack after it listens.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from anabranch import descriptors, locks
from anabranch.admin.logs import serve_logs
from anabranch.aio import new_event_loop
from anabranch.broker.broker import Broker
from anabranch.broker.cluster.endpoint import Endpoint, PeerTls
from anabranch.broker.cluster.environment import BrokerEnvironment
from anabranch.clock import SystemClock
from anabranch.config.broker import BrokerConfig
from anabranch.data.directory import METADATA_FILE, STORES, open_data
from anabranch.failpoints import Failpoints, NoFailpoints, ProcessFailpoints
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.limits import StorageLimits
from anabranch.ledger.os_disk import LOCK_FILE, OsDisk
from anabranch.listening import OPTIONS, Listeners, bind
from anabranch.metadata import sqlite_check
from anabranch.metadata.metadata_reserve import MetadataReserve
from anabranch.metadata.sqlite import SqliteStore
from anabranch.security.configured import make_audit, make_gate
from anabranch.security.peer_secret_file import PeerSecretFile
from anabranch.security.tls import BrokerTls, peer_context, server_context
from anabranch.timings import Timings
from anabranch.transport.accepting import Acceptor, TlsHandshake
from anabranch.transport.door import Door
from anabranch.transport.pump import Pump

log = logging.getLogger(__name__)

POLL_S = 0.01
"""How often a worker reads changes of other workers from the metadata store: it sees them within 20 ms."""

SWITCH_S = 0.0005
"""How long one thread keeps the interpreter; at 5 ms a busy metadata thread would stall the event loop."""

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


def run(config: BrokerConfig) -> int:
    """Serve in this process until SIGTERM or SIGINT; returns the exit code."""
    set_up_logging(config)
    lock = open_data(config.data)
    try:
        prepare_metadata(config)
        check_files(config)
        listeners = bind(config)
        ready = partial(print, "ready", listeners.service_urls(config), flush=True)
        return run_worker(config, Worker(0, listeners, ready))
    finally:
        os.close(lock)


def run_worker(config: BrokerConfig, worker: Worker) -> int:
    """Serve until a signal arrives or the parent ends; returns the exit code."""
    demand = descriptors.Demand(
        config.connections_max, config.http_connections_max, stores_of(config), config.workers
    )
    shares = descriptors.share_limit(demand)
    config = dataclasses.replace(
        config, connections_max=shares.connections, http_connections_max=shares.http_connections
    )
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serve(config, worker, shares.files_per_store))


def check_files(config: BrokerConfig) -> None:
    """Read the files that a worker needs before a process listens; raises InvalidConfigurationError."""
    PeerSecretFile(Path(config.data)).prepare()
    make_gate(config, SystemClock(), make_audit(config, SystemClock(), 0))
    if config.has_tls:
        server_context(config)
        peer_context(config)


def set_up_logging(config: BrokerConfig, prefix: str = "") -> None:
    logging.basicConfig(
        level=config.log_level.upper(),
        format=f"%(asctime)s %(levelname)s {prefix}%(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )


def prepare_metadata(config: BrokerConfig) -> None:
    """Check and repair the metadata; MissingDataError if it is gone although there are stores."""
    files = (Path(config.data) / STORES).glob("*/*")
    has_stores = any(file.name != LOCK_FILE for file in files)
    file = Path(config.data) / METADATA_FILE
    # A start writes to the metadata. The first commit that finds plenty of room holds the reserve again.
    MetadataReserve(file).give_up()
    sqlite_check.prepare(file, may_begin=not has_stores)


async def serve(config: BrokerConfig, worker: Worker, files_per_store: int) -> int:
    """Run one broker; returns the exit code, which is 1 when it stopped because a disk failed."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if worker.parent is not None:
        loop.add_reader(worker.parent, stopping.set)
    store = _metadata_store(config)
    tls = BrokerTls.load(config, SystemClock()) if config.has_tls else None
    broker = _make_broker(config, worker, store, files_per_store, tls)
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
        await store.close()
    return int(broker.failed.is_set())


def _metadata_store(config: BrokerConfig) -> SqliteStore:
    def is_worker(pid: int) -> bool:
        return locks.holds(pid, Path(config.data).absolute() / LOCK_FILE, "FLOCK")

    return SqliteStore(
        Path(config.data) / METADATA_FILE,
        lease_s=config.lease_s,
        poll_s=POLL_S if config.workers > 1 else None,
        alone=config.workers == 1,
        may_end=is_worker,
    )


async def _stop_when_failed(broker: Broker, stopping: asyncio.Event) -> None:
    await broker.failed.wait()
    stopping.set()


async def _tidy(broker: Broker) -> None:
    """Collect removed logs, which are reference cycles, and end links that a rotated secret has proven."""
    collected = 0
    while True:
        await asyncio.sleep(TIDY_S)
        broker.secret.refresh()
        if broker.logs.dropped >= collected + TIDY_LOGS:
            collected = broker.logs.dropped
            gc.collect()


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` to its end, or cancel it when `stopping` is set; returns whether it was done."""
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


def stores_of(config: BrokerConfig) -> int:
    """How many stores this process may have to serve: all stores of the directory."""
    found = sum(1 for _ in (Path(config.data) / STORES).glob("*"))
    return max(config.workers, found)


def cache_of_each_store(config: BrokerConfig) -> int:
    """The cache of one store: all stores of the directory together may use the configured cache."""
    return config.cache_bytes // stores_of(config)


def _make_broker(
    config: BrokerConfig, worker: Worker, store: SqliteStore, files_per_store: int, tls: BrokerTls | None
) -> Broker:
    clock = SystemClock()
    timings = Timings()
    limits = StorageLimits(
        cache_of_each_store(config), config.journal_bytes_max, reserve_bytes=config.disk_reserve_bytes
    )

    def storage_of(number: int) -> FileStorage:
        return FileStorage(
            OsDisk(Path(config.data) / STORES / str(number), open_files_max=files_per_store),
            clock=clock,
            limits=limits,
            timings=timings,
        )

    text = os.environ.get("ANABRANCH_FAILPOINTS", "")
    failpoints: Failpoints = ProcessFailpoints.from_text(text) if text else NoFailpoints()
    gate = make_gate(config, clock, make_audit(config, clock, worker.id))
    broker = Broker(
        config,
        BrokerEnvironment(
            storage_of,
            store,
            clock,
            random.Random(),
            failpoints,
            PeerSecretFile(Path(config.data)),
            timings,
            gate,
        ),
        _endpoint(config, worker.listeners, tls),
        id=worker.id,
    )
    # Before the broker listens: other workers may call its logs before its HTTP stack is loaded.
    serve_logs(broker)
    return broker


def _endpoint(config: BrokerConfig, listeners: Listeners, tls: BrokerTls | None) -> Endpoint:
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
    server_module = await asyncio.to_thread(importlib.import_module, "anabranch.admin.server")
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
