"""`python -m tests.slow.run` measures a canary beside thousands of slow clients of each kind."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from anabranch import AsyncClient
from simulation.harness.process import BrokerProcess
from tests.fuzz.live import Canary
from tests.slow.clients import BACKLOG_TOPIC, KINDS, attacker

BACKLOG_MESSAGES: Final = 8000
BEATS_BEFORE: Final = 200
P99_MAX_S: Final = 0.25
MEMORY_GROWTH_MAX: Final = 700 * 2**20


class SlowError(Exception):
    """The broker, or the canary, suffered from slow clients."""


class SlowEffort(NamedTuple):
    """How many slow clients of one kind, and for how long once all are there."""

    clients: int
    seconds: float


class SlowFigures(NamedTuple):
    """The canary beside one kind of slow clients, and the most memory and descriptors of the broker."""

    kind: str
    opened_in_s: float
    beats: int
    quiet_s: tuple[float, float]
    """Median and 99th percentile of the canary before the slow clients came."""
    during_s: tuple[float, float]
    longest_s: float
    memory_before_bytes: int
    memory_bytes: int
    files: int

    def __str__(self) -> str:
        quiet, during = ("/".join(f"{s * 1000:.1f}" for s in pair) for pair in (self.quiet_s, self.during_s))
        return (
            f"{self.kind}: all open in {self.opened_in_s:.1f} s; canary p50/p99 {quiet} ms before, "
            f"{during} ms during ({self.beats} beats, longest {self.longest_s * 1000:.0f} ms); memory "
            f"{self.memory_before_bytes >> 20} to {self.memory_bytes >> 20} MiB, {self.files} descriptors"
        )


def measure(kind: str, effort: SlowEffort, broker: BrokerProcess) -> SlowFigures:
    """Attack a running broker; raises SlowError if the broker logs a traceback or ends."""
    figures = asyncio.run(_measure(kind, effort, broker))
    if not broker.running or "Traceback" in broker.log_text:
        raise SlowError(f"{kind}: the broker failed:\n{broker.log_text[-4000:]}")
    return figures


async def _measure(kind: str, effort: SlowEffort, broker: BrokerProcess) -> SlowFigures:
    async with AsyncClient(broker.url) as client:
        await _fill_backlog(client)
        canary = Canary(client)
        await canary.beat_until(lambda: len(canary.beats_s) >= BEATS_BEFORE)
        quiet_s = canary.p50_s(), canary.p99_s()
        canary.beats_s.clear()
        before = broker.memory_bytes()
        memory, files = [before], [0]
        began = time.monotonic()
        opened_at = 0.0
        with attacker(broker.port, kind, effort.clients) as opened:

            def done() -> bool:
                nonlocal opened_at
                memory.append(broker.memory_bytes())
                files.append(broker.open_files())
                if not opened_at and opened.poll():
                    opened_at = time.monotonic()
                return bool(opened_at) and time.monotonic() >= opened_at + effort.seconds

            await canary.beat_until(done)
        return SlowFigures(
            kind,
            opened_at - began,
            len(canary.beats_s),
            quiet_s,
            (canary.p50_s(), canary.p99_s()),
            max(canary.beats_s),
            before,
            max(memory),
            max(files),
        )


async def _fill_backlog(client: AsyncClient) -> None:
    async with await client.create_producer(BACKLOG_TOPIC, batching=False) as producer:
        for _ in range(BACKLOG_MESSAGES):
            await producer.enqueue(bytes(1000))
        await producer.flush()


def judge(figures: SlowFigures) -> None:
    """Raise SlowError if other clients or the memory suffered."""
    p99_s = figures.during_s[1]
    if p99_s > max(P99_MAX_S, 5 * figures.quiet_s[1]):
        raise SlowError(
            f"{figures.kind}: the canary's p99 was {p99_s:.3f} s, {figures.quiet_s[1]:.3f} s before"
        )
    growth = figures.memory_bytes - figures.memory_before_bytes
    if growth > MEMORY_GROWTH_MAX:
        raise SlowError(f"{figures.kind}: the memory of the broker grew by {growth >> 20} MiB")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slow.run", description=__doc__)
    parser.add_argument("--clients", type=int, default=2000, help="slow clients of each kind (2000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each kind, once all are open (20)")
    parser.add_argument("--kind", choices=list(KINDS), help="this kind only")
    arguments = parser.parse_args(argv)
    effort = SlowEffort(arguments.clients, arguments.seconds)
    failed = False
    for kind in [arguments.kind] if arguments.kind else KINDS:
        with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "data") as broker:
            try:
                figures = measure(kind, effort, broker)
                print(figures, flush=True)
                judge(figures)
            except SlowError as error:
                failed = True
                print(f"FAILED: {error}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
