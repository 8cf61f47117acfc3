"""The service of real queries: readers, writers and sinks through a session with the brokers.

There is one session per thread and process. It is made on first use, and connects when it is first asked for
a reader, a writer or a sink. Only here is it decided whether the brokers are Anabranch or Apache Pulsar.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.errors import UnsupportedFeatureError
from anabranch.spark.brokers.anabranch_reader import AnabranchReader
from anabranch.spark.brokers.pulsar_reader import PulsarReader
from anabranch.spark.brokers.thread_client import ThreadClient
from anabranch.spark.options.given import Settings
from anabranch.spark.topics import Sink, TopicReader, TopicWriter
from anabranch.spark.worker_memory import prepare_worker

if TYPE_CHECKING:
    # Imported late: Spark starts a process for each query that plans and never writes.
    from anabranch.spark.sink.hosts import SinkHost


@dataclass(frozen=True, slots=True)
class BrokerService:
    """Reaches topics through brokers. It is a picklable value."""

    url: str
    settings: Settings = ()

    def session(self) -> BrokerSession:
        """Return the session of this thread, which connects on first use."""
        return _session(self)

    def reader(self) -> TopicReader:
        return _session(self).reader()

    def writer(self, topic: str, flush_bytes: int, compression: str | None) -> TopicWriter:
        # Imported late: a process that only reads needs no producer.
        from anabranch.spark.sink.broker_writer import BrokerWriter

        return BrokerWriter(_session(self).clients, topic, flush_bytes, compression)

    def sink(self, namespace: str, sink_id: str) -> Sink:
        # Imported late: most processes never write exactly once.
        from anabranch.spark.sink.broker_sink import BrokerSink

        session = _session(self)
        return BrokerSink(session.clients, session.sink_host(), namespace, sink_id)


class BrokerSession:
    """The clients of one thread, with the reader and the sink host that fit the brokers."""

    def __init__(self, service: BrokerService) -> None:
        self.clients = ThreadClient(service.url, service.settings)
        self._reader: TopicReader | None = None
        self._sink_host: SinkHost | None = None

    def reader(self) -> TopicReader:
        """Return the reader that fits the brokers; connects on first use."""
        if self._reader is None:
            # Anabranch numbers messages; Apache Pulsar knows only ledgers and entries. A cluster is one or
            # the other, so the first connection decides for as long as the session lives.
            numbered = self.clients.run(self.clients.client.numbers_messages())
            self._reader = AnabranchReader(self.clients) if numbered else PulsarReader(self.clients)
        return self._reader

    def sink_host(self) -> SinkHost:
        """Return the side of an exactly-once sink that depends on the brokers; connects on first use."""
        if self._sink_host is None:
            self._sink_host = self.clients.run(self._fitting_sink_host())
        return self._sink_host

    async def _fitting_sink_host(self) -> SinkHost:
        client = self.clients.client
        if await client.numbers_messages():
            from anabranch.spark.sink.hosts import AnabranchSinkHost

            return AnabranchSinkHost(self.clients)
        if not await client.has_control_plane():
            raise UnsupportedFeatureError(
                "delivery=exactly-once needs an Anabranch broker, or control processes over Apache Pulsar; "
                "set delivery=at-least-once for Apache Pulsar alone"
            )
        from anabranch.spark.sink.pulsar_host import PulsarSinkHost

        return PulsarSinkHost(self.clients)

    def close(self) -> None:
        self.clients.close()


_sessions: dict[tuple[int, int, BrokerService], BrokerSession] = {}


def _session(service: BrokerService) -> BrokerSession:
    """Return the session of this thread; a forked process makes a new one."""
    key = (os.getpid(), threading.get_ident(), service)
    if key not in _sessions:
        _sessions[key] = BrokerSession(service)
    prepare_worker()
    return _sessions[key]


def close_sessions() -> None:
    """Close the sessions of this thread, in tests and in programs that continue after Spark."""
    for key in [key for key in _sessions if key[:2] == (os.getpid(), threading.get_ident())]:
        _sessions.pop(key).close()
