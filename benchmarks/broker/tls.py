"""Publishing over TLS beside publishing without, on one broker in one run.

Rounds over both ports alternate, so that a machine that slows down for a while slows both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from anabranch.transport.tls import ClientTls
from benchmarks.broker.entries import WireProducers
from benchmarks.peers.ours import publish_bulk, publish_each
from benchmarks.results import Row
from simulation.harness.certificates import Authority, tls_settings
from simulation.harness.process import BrokerProcess

GOAL = 0.70
TOPIC = "topic://public/default/bench"

Publish = Callable[..., Coroutine[Any, Any, float]]


def run(scratch: Path, fast: bool) -> list[Row]:
    authority = Authority(scratch)
    rounds = 3 if fast else 7
    count = 100_000 if fast else 300_000
    context = ClientTls(authority.file).context()
    with BrokerProcess(scratch / "data", tls_settings(authority.server())) as broker:

        def clients(publish: Publish, messages: int, tls: bool) -> float:
            url, trust = (broker.tls_url, authority.file) if tls else (broker.url, None)
            return asyncio.run(publish(url, TOPIC, messages, tls_trust_certs_file_path=trust))

        def entries(tls: bool) -> float:
            port = broker.tls_port if tls else broker.port
            topic = f"persistent://public/default/bench-{port}"
            return count / 2 / WireProducers(port, [topic], count // 2, context if tls else None).run()

        rows = [
            _beside("publish over TLS, each outcome known", rounds, partial(clients, publish_each, count)),
            _beside("publish in bulk over TLS", rounds, partial(clients, publish_bulk, 4 * count)),
            _beside("broker, 100-byte entries over TLS", rounds, entries, "entries/s"),
        ]

        def bulk_per_cpu_second(tls: bool) -> float:
            before = time.process_time() + broker.cpu_s()
            clients(publish_bulk, 4 * count, tls)
            return 4 * count / (time.process_time() + broker.cpu_s() - before)

        # A busy machine slows whole rounds, but hardly changes the CPU time of a message.
        name = "publish in bulk over TLS, by CPU time of client and broker"
        return [*rows, _beside(name, rounds, bulk_per_cpu_second)]


def _beside(name: str, rounds: int, measure: Callable[[bool], float], unit: str = "msg/s") -> Row:
    """The best round of each port, because other work on the machine can only slow a round down."""
    pairs = [(measure(False), measure(True)) for _ in range(rounds)]
    plain, tls = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    return Row(name, unit, tls, "without TLS", plain, f"ratio at least {GOAL:.2f}", met=tls >= GOAL * plain)
