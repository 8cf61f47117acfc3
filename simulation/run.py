"""`python -m simulation.run --seeds N` runs many simulations and prints their findings.

A failure prints the command that replays it exactly.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from simulation.runs.cluster_run import ClusterRun
from simulation.runs.control_run import ControlRun
from simulation.runs.shape import FAILPOINTS
from simulation.runs.sometimes import SOMETIMES
from simulation.runs.storage_run import StorageRun

SEEDS_FOR_SOMETIMES = 500
"""From this many seeds on, every event in SOMETIMES must have occurred."""

RUNS_PER_POOL = 1000
"""Worker processes are replaced after this many runs; `max_tasks_per_child` was seen to hang."""

STORAGE = "storage"
CONTROL = "control"
CONTROL_EVERY = 4
"""One in this many seeds also runs control processes over a simulated Pulsar."""
LINE_MAX = 2000


class Result(NamedTuple):
    """The outcome of one seed."""

    seed: int
    step: str | None
    found: list[str]
    counts: Counter[str]
    digest: int
    seconds: float


def step_of(seed: int) -> str | None:
    """Return the step at which a seed dies: even seeds take turns over the steps, odd ones have none."""
    return FAILPOINTS[seed // 2 % len(FAILPOINTS)] if seed % 2 == 0 else None


def run_one(seed: int, step: str | None, trace: list[str] | None = None) -> Result:
    """Run one simulation without garbage collection, whose times differ between runs."""
    began = time.perf_counter()
    run = _run_of(seed, step)
    run.loop.trace = trace
    with _silence():
        try:
            found = run.run()
        except Exception:
            found = [traceback.format_exc()]
    return Result(seed, step, found, run.counts, run.loop.digest, time.perf_counter() - began)


def _run_of(seed: int, step: str | None) -> ClusterRun | StorageRun | ControlRun:
    if step == STORAGE:
        return StorageRun(seed)
    return ControlRun(seed) if step == CONTROL else ClusterRun(seed, step)


@contextmanager
def _silence() -> Iterator[None]:
    """Run without garbage collection, log lines, and complaints about coroutines of killed processes.

    A process may be killed between the creation of a coroutine and its first step, and the clean-up of its
    coroutines runs outside of any task when they are destroyed.
    """
    quiet_before, hook_before = logging.root.manager.disable, sys.unraisablehook
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda unraisable: None
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            yield
            gc.collect()
    finally:
        gc.enable()
        sys.unraisablehook = hook_before
        logging.disable(quiet_before)


def run_many(first: int, count: int, jobs: int) -> int:
    """Run `count` cluster seeds, as many storage seeds, and some control seeds; return the exit code."""
    work: list[tuple[int, str | None]] = []
    for seed in range(first, first + count):
        work += [(seed, step_of(seed)), (seed, STORAGE)]
        work += [(seed, CONTROL)] if seed % CONTROL_EVERY == 0 else []
    counts: Counter[str] = Counter()
    failed = 0
    began = time.perf_counter()
    for start in range(0, len(work), RUNS_PER_POOL):
        seeds, steps = zip(*work[start : start + RUNS_PER_POOL], strict=True)
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            for result in pool.map(run_one, seeds, steps, chunksize=4):
                counts.update(result.counts)
                if result.found:
                    failed += 1
                    _report(result)
    print(f"{len(work)} runs, {failed} failed, {time.perf_counter() - began:.0f} s")
    never = [name for name in SOMETIMES if not counts[name]]
    if never:
        print(f"never happened: {', '.join(never)}")
    return 1 if failed or (never and count >= SEEDS_FOR_SOMETIMES) else 0


def _report(result: Result) -> None:
    step = f" --step {result.step}" if result.step else ""
    print(f"FAILED: replay with python -m simulation.run --seed {result.seed}{step}")
    for line in result.found[:5]:
        print(f"    {line[:LINE_MAX]}")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds (1000)")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: cores)")
    parser.add_argument("--seed", type=int, help="run only this seed")
    steps = [*FAILPOINTS, STORAGE, CONTROL]
    parser.add_argument("--step", choices=steps, help="with --seed: where the broker dies")
    parser.add_argument("--trace", type=Path, help="with --seed: write every event to this file")
    arguments = parser.parse_args(argv)
    if arguments.seed is None:
        return run_many(arguments.first, arguments.seeds, arguments.jobs)
    trace: list[str] | None = [] if arguments.trace else None
    result = run_one(arguments.seed, arguments.step, trace)
    if trace is not None:
        arguments.trace.write_text("\n".join(trace))
    if result.found:
        _report(result)
    print(f"seed {result.seed}: {'failed' if result.found else 'ok'}, digest {result.digest:08x}")
    return 1 if result.found else 0


if __name__ == "__main__":
    sys.exit(main())
