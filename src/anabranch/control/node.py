"""Composition root of a control process: a broker without logs over the topics of an Apache Pulsar cluster.

A control process keeps no state on its machine. When its session with the metadata store is lost, its topics
may have another leader, so the whole process starts over with another session.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from anabranch.aio import TaskRegistry, new_event_loop
from anabranch.broker.broker import Broker
from anabranch.broker.browsing.logs import serve_logs
from anabranch.broker.cluster.endpoint import Endpoint
from anabranch.broker.environment import BrokerEnvironment
from anabranch.clock import SystemClock
from anabranch.config.broker import BrokerConfig
from anabranch.control.cluster_admin import ClusterAdmin
from anabranch.control.drain_polls import DrainPolls
from anabranch.control.homes import HomeLock, claim_number
from anabranch.control.lease import SessionLease, SessionStore
from anabranch.control.leased_admin import LeasedAdmin
from anabranch.control.pulsar_admin import PulsarAdmin
from anabranch.control.pulsar_engine import PulsarEngine
from anabranch.control.pulsar_segments import PulsarSegments
from anabranch.control.quiet_periods import QuietPeriods
from anabranch.control.stored_secret import StoredPeerSecret, installation_id
from anabranch.control.sweeping import Sweeper
from anabranch.control.topic_marks import NewTopics
from anabranch.credentials.authentication import Authentication
from anabranch.errors import InvalidServiceUrlError, MetadataError
from anabranch.failpoints import NoFailpoints
from anabranch.metadata.store import MetadataStore
from anabranch.metadata.topics import TopicStore
from anabranch.security.configured import make_audit, make_gate
from anabranch.security.tls import BrokerTls
from anabranch.server.attending import Worker, attend, endpoint_of, stop_on_signals
from anabranch.server.listening import Listeners, bind
from anabranch.server.node import set_up_logging

_logger = logging.getLogger(__name__)

ENTER_PAUSE_S = 1.0
"""Pause before the metadata store is asked again at the start."""

ANSWER_S = 5.0
"""How long a server of the cluster may take to accept a connection at the start."""


OpenStore = Callable[[Callable[[], None]], SessionStore]
"""Begins a session; the argument is called when the session has ended."""


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """The cluster that a control process works for."""

    pulsar_admin: tuple[str, ...]
    """Addresses of the cluster's admin API."""
    open_store: OpenStore
    authentication: Authentication | None = None
    """Proves the role of this process to the admin API."""
    trust_file: str | None = None


def run(config: BrokerConfig, options: ControlOptions) -> int:
    """Lead topics in this process until SIGTERM or SIGINT; returns the exit code."""
    set_up_logging(config)
    if not Path(config.audit_log).is_absolute() and config.audit_log != "off":
        # The default file lies in a data directory, and this process has none.
        config = dataclasses.replace(config, audit_log="stderr")
    while True:
        listeners = bind(config)
        # A process that starts over keeps its addresses, even if it chose its ports itself.
        config = _with_ports(config, listeners)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            lost = runner.run(_serve(config, options, listeners))
        if not lost:
            return 0
        _logger.warning("this process starts over, because its session was lost")


def check_answers(url: str) -> None:
    """Raise InvalidServiceUrlError unless a server listens at one of the addresses of a service URL."""
    scheme, _, hosts = url.partition("://")
    if scheme not in ("pulsar", "pulsar+ssl") or not hosts:
        raise InvalidServiceUrlError(f"{url!r} is not a service URL; write pulsar://host:port[,host:port...]")
    reasons = []
    for one in hosts.rstrip("/").split(","):
        host, _, port = one.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
            return
        except (OSError, ValueError) as error:
            reasons.append(f"{one}: {error}")
    raise InvalidServiceUrlError(f"no server of {url} answers: {'; '.join(reasons)}")


def _with_ports(config: BrokerConfig, listeners: Listeners) -> BrokerConfig:
    fields = {"pulsar": "port", "http": "http_port", "pulsar+ssl": "tls_port", "https": "https_port"}
    ports = {fields[scheme]: found[-1].getsockname()[1] for scheme, found in listeners.sockets.items()}
    return dataclasses.replace(config, **ports)


class ControlParts:
    """The parts of a control process that call the cluster: each change asks the lease first."""

    def __init__(
        self,
        admin: ClusterAdmin,
        lease: SessionLease,
        tasks: TaskRegistry,
        made: NewTopics,
        admin_url: str = "",
    ) -> None:
        self._admin = LeasedAdmin(admin, lease.check)
        self._installation = made.installation
        self.quiet = QuietPeriods()
        segments = PulsarSegments(self._admin, DrainPolls(tasks), made=made, quiet=self.quiet)
        self.engine = PulsarEngine(self._admin, segments, tasks, admin_url, lease.check)

    def sweeper(self, topics: TopicStore, owns: Callable[[int], bool]) -> Sweeper:
        return Sweeper(self._admin, topics, owns, self._installation)


async def _serve(config: BrokerConfig, options: ControlOptions, listeners: Listeners) -> bool:
    """Serve with one session. Returns whether to start over, because the session was lost."""
    told, tasks, lost = stop_on_signals(), TaskRegistry(), asyncio.Event()
    store = options.open_store(lost.set)
    admin = PulsarAdmin(options.pulsar_admin, options.authentication, options.trust_file)
    try:
        tls = BrokerTls.load(config, SystemClock()) if config.has_tls else None
        endpoint = endpoint_of(config, listeners, tls)
        entered = await enter(store, endpoint.url or endpoint.url_tls, told)
        if entered is None:
            return False
        made = NewTopics(entered.installation, minutes_of(config.segment_retention_s))
        parts = ControlParts(admin, SessionLease(store, lost), tasks, made, options.pulsar_admin[0])
        broker = _make_broker(config, endpoint, store, entered, parts)
        serve_logs(broker)
        # A lost session stops the broker too, and must not hide that a signal arrived as well.
        stopping = asyncio.Event()
        tasks.spawn(_pass_on(told, stopping), "signals")
        tasks.spawn(_fail_when_lost(lost, broker), "session")
        tasks.spawn(parts.sweeper(broker.records, broker.stores.is_open).run(), "sweep")
        ready = partial(print, "ready", listeners.service_urls(config), flush=True)
        failed = await attend(broker, Worker(entered.number, listeners, ready), tls, stopping)
        return bool(failed) and not told.is_set()
    finally:
        await tasks.stop()
        await admin.close()
        await store.close()


def _make_broker(
    config: BrokerConfig, endpoint: Endpoint, store: MetadataStore, entered: Entered, parts: ControlParts
) -> Broker:
    clock = SystemClock()
    environment = BrokerEnvironment(
        partial(HomeLock, store, quiet=parts.quiet),
        store,
        clock,
        random.Random(),
        NoFailpoints(),
        entered.secret,
        gate=make_gate(config, clock, make_audit(config, clock, entered.number)),
        engine=lambda made: parts.engine,
    )
    return Broker(config, environment, endpoint, id=entered.number)


def minutes_of(retention_s: float) -> int:
    """Return the retention in whole minutes, as Pulsar wants it; -1 keeps messages forever."""
    return -1 if retention_s < 0 else math.ceil(retention_s / 60)


class Entered(NamedTuple):
    """The number of a process, and the values in the metadata store that all processes share."""

    number: int
    secret: StoredPeerSecret
    installation: str


async def enter(store: MetadataStore, address: str, told: asyncio.Event) -> Entered | None:
    """Claim a number and read the values that all processes share. Retries until the store answers.

    Returns None if `told` is set first.
    """

    async def attempt() -> Entered:
        number = await claim_number(store, address)
        return Entered(number, await StoredPeerSecret.read(store), await installation_id(store))

    stopped = asyncio.ensure_future(told.wait())
    try:
        while not told.is_set():
            work = asyncio.ensure_future(attempt())
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                return None
            try:
                return work.result()
            except MetadataError as error:
                _logger.warning("waiting for the metadata store: %s", error)
            await asyncio.wait((stopped,), timeout=ENTER_PAUSE_S)
        return None
    finally:
        stopped.cancel()


async def _pass_on(told: asyncio.Event, stopping: asyncio.Event) -> None:
    await told.wait()
    stopping.set()


async def _fail_when_lost(lost: asyncio.Event, broker: Broker) -> None:
    await lost.wait()
    broker.failed.set()
