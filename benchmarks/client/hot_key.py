"""One key has half of a steady traffic, and its consumer hangs: what the consumers of the other keys notice.

Throughput and latency during the stall are compared with the undisturbed phase of the same run. Real Pulsar
runs the same beside us, if Java and Maven are there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.client.hot_key_clients import run_key_shared, run_shared_stream
from benchmarks.client.hot_key_traffic import Plan, Traffic
from benchmarks.peers.pulsar_peer import PEER, PulsarPeer
from benchmarks.results import Row
from simulation.harness.process import BrokerProcess

FULL: Final = Plan(5.0, 60.0, 600.0, 300.0)
SHORT: Final = Plan(3.0, 20.0, 60.0, 60.0)
FAST: Final = Plan(1.0, 5.0, 10.0, 20.0)
"""For CI: the stall is just long enough to fill a window of 10,000 held entries."""

KEPT_MIN: Final = 0.9
SLOWER_MAX: Final = 2.0

SETTINGS: Final = {"scalableTopicAutoScaleEnabled": "false"}


def run(scratch: Path, fast: bool) -> list[Row]:
    """A stall of ten minutes; with `fast` one of ten seconds, without Pulsar beside it."""
    return _rows(scratch, FAST) if fast else _rows(scratch, FULL, PulsarPeer.find())


def run_short(scratch: Path, fast: bool) -> list[Row]:
    """A stall of one minute."""
    return _rows(scratch, SHORT, None if fast else PulsarPeer.find())


def _rows(scratch: Path, plan: Plan, peer: PulsarPeer | None = None) -> list[Row]:
    # A switch of threads may take 5 ms by default, which would be a part of each latency of pulsar-client.
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        stream = _ours(scratch / "stream", run_shared_stream, plan)
        shared = _ours(scratch / "key-shared", run_key_shared, plan)
        beside = None
        if peer is not None:
            with peer.started(scratch / "pulsar") as server:
                beside = run_key_shared(server.url, plan)
    finally:
        sys.setswitchinterval(before_s)
    return [
        *_figures("stream shared by buckets", stream, beside),
        *_figures("Key_Shared of pulsar-client", shared, beside),
    ]


def _ours(data: Path, drive: Callable[[str, Plan], Traffic], plan: Plan) -> Traffic:
    with BrokerProcess(data, SETTINGS) as broker:
        return drive(broker.url, plan)


def _figures(title: str, ours: Traffic, peer: Traffic | None) -> list[Row]:
    name = f"hot key, {title}, {ours.plan.stall_s:g} s"
    beside = "" if peer is None else f"{PEER}, Key_Shared"
    calm, stalled = ours.calm(), ours.stalled()
    return [
        Row(
            f"{name}: throughput of other keys",
            "msg/s",
            stalled.rate,
            beside,
            None if peer is None else peer.stalled().rate,
            f"at least {KEPT_MIN:.0%} of undisturbed",
            _series(ours.calm().rate, None if peer is None else peer.calm().rate),
            stalled.rate >= KEPT_MIN * calm.rate,
        ),
        Row(
            f"{name}: p99 of other keys",
            "ms",
            stalled.p99_ms,
            beside,
            None if peer is None else peer.stalled().p99_ms,
            f"at most {SLOWER_MAX:g} times undisturbed",
            _series(calm.p99_ms, None if peer is None else peer.calm().p99_ms),
            stalled.p99_ms <= SLOWER_MAX * calm.p99_ms,
        ),
        Row(
            f"{name}: missing or out of order at the end",
            "messages",
            ours.missing + ours.disorder,
            beside,
            None if peer is None else peer.missing + peer.disorder,
            "none",
            met=not ours.missing + ours.disorder,
        ),
    ]


def _series(ours: float, peer: float | None) -> dict[str, float]:
    found = {"undisturbed": ours}
    return found if peer is None else {**found, "peer undisturbed": peer}
