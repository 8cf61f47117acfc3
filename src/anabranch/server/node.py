"""Composition root: build one broker process from its configuration, run it, stop it.

All other modules receive their parts from outside; this module chooses them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import random
import sys
from functools import partial
from pathlib import Path

from anabranch import descriptors, locks
from anabranch.aio import new_event_loop
from anabranch.broker.broker import Broker
from anabranch.broker.browsing.logs import serve_logs
from anabranch.broker.environment import BrokerEnvironment
from anabranch.clock import SystemClock
from anabranch.config.broker import BrokerConfig
from anabranch.data.directory import METADATA_FILE, STORES, open_data
from anabranch.failpoints import Failpoints, NoFailpoints, ProcessFailpoints
from anabranch.ledger.disks.os_disk import LOCK_FILE, OsDisk
from anabranch.ledger.file_storage import FileStorage
from anabranch.ledger.limits import StorageLimits
from anabranch.metadata.sqlite import sqlite_check
from anabranch.metadata.sqlite.metadata_reserve import MetadataReserve
from anabranch.metadata.sqlite.sqlite_store import SqliteStore
from anabranch.security.configured import make_audit, make_gate
from anabranch.security.peer_secret_file import PeerSecretFile
from anabranch.security.tls import BrokerTls, peer_context, server_context
from anabranch.server.attending import Worker, attend, endpoint_of, stop_on_signals
from anabranch.server.listening import bind
from anabranch.timings import Timings

log = logging.getLogger(__name__)

POLL_S = 0.01
"""How often a worker reads changes of other workers from the metadata store: it sees them within 20 ms."""

SWITCH_S = 0.0005
"""How long one thread keeps the interpreter; at 5 ms a busy metadata thread would stall the event loop."""


def run(config: BrokerConfig) -> int:
    """Serve in this process until SIGTERM or SIGINT; returns the exit code."""
    set_up_logging(config)
    check_ports(config)
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


def check_ports(config: BrokerConfig) -> None:
    """Raise ConflictError for a port that is in use, before a data directory is created for nothing."""
    if not Path(config.data).exists():
        bind(config).close()


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
    # A start writes to the metadata, even on a full disk. The first commit that finds plenty of room takes
    # the reserve again.
    MetadataReserve(file).give_up()
    sqlite_check.prepare(file, may_begin=not has_stores)


async def serve(config: BrokerConfig, worker: Worker, files_per_store: int) -> int:
    """Run one broker; returns the exit code, which is 1 when it stopped because a disk failed."""
    store = _metadata_store(config)
    tls = BrokerTls.load(config, SystemClock()) if config.has_tls else None
    broker = _make_broker(config, worker, store, files_per_store, tls)
    try:
        return await attend(broker, worker, tls, stop_on_signals())
    finally:
        await store.close()


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
        endpoint_of(config, worker.listeners, tls),
        id=worker.id,
    )
    # Before the broker listens: other workers may call its logs before its HTTP stack is loaded.
    serve_logs(broker)
    return broker
