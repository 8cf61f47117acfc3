"""`python -m tests.fuzz.run` fuzzes decoders, a live broker, recovery and REST bodies."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from tests.fuzz.decoders import FuzzError, fuzz_decoders
from tests.fuzz.live import fuzz_live

GUIDED = ("frames", "payloads", "tokens", "recovery", "rest")


class Effort(NamedTuple):
    """How much to fuzz."""

    decoded: int
    live: int
    guided_s: int
    """Seconds for each guided target."""


WHOLE = Effort(1_000_000, 300_000, 120)
ONE_MINUTE = Effort(40_000, 40_000, 4)


def fuzz_all(effort: Effort, seed: int, jobs: int) -> None:
    """Fuzz everything; raises FuzzError for the first harm."""
    began = time.monotonic()
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        share = effort.decoded // jobs
        counts = list(pool.map(fuzz_decoders, range(seed, seed + jobs), [share] * jobs))
    frames, commands = (sum(count[name] for count in counts) for name in ("frames", "commands"))
    print(f"decoders: {frames} frames, {commands} commands, {time.monotonic() - began:.0f} s", flush=True)
    live = fuzz_live(seed, effort.live)
    print(
        f"live broker: {live.frames} frames in {live.seconds:.0f} s; canary p50 {live.p50_s * 1000:.1f} ms, "
        f"p99 {live.p99_s * 1000:.1f} ms (quiet {live.quiet_p99_s * 1000:.1f} ms); "
        f"memory grew by {live.memory_growth_bytes / 2**20:.0f} MiB",
        flush=True,
    )
    for target in GUIDED:
        print(f"guided {target}: {guided(target, effort.guided_s)}", flush=True)


def guided(target: str, seconds: int) -> str:
    """Run one guided target in a process of its own; returns libFuzzer's last line."""
    command = [sys.executable, "-m", "tests.fuzz.guided", target, f"-max_total_time={seconds}"]
    result = subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, check=False)
    output = result.stdout.decode(errors="replace")
    if result.returncode != 0:
        raise FuzzError(f"{' '.join(command[1:])} ended with {result.returncode}:\n{output[-6000:]}")
    return output.strip().splitlines()[-1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="one minute instead of about fifteen")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="of all frames (random)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    arguments = parser.parse_args(argv)
    print(f"fuzzing with --seed {arguments.seed}", flush=True)
    try:
        fuzz_all(ONE_MINUTE if arguments.fast else WHOLE, arguments.seed, arguments.jobs)
    except FuzzError as error:
        print(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
