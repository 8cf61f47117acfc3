"""Measures how long brokers keep the event loop to themselves, in CPU time and not in wall time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simulation.world.loop import SimLoop
from simulation.world.process import SimProcess


class LongestStep:
    """The longest callback of any broker while it is watched."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    def run(self, process: SimProcess | None, step: Callable[[], None]) -> None:
        if process is None:
            step()
            return
        began = time.thread_time()
        step()
        self.cpu_s = max(self.cpu_s, time.thread_time() - began)


@contextmanager
def longest_step(loop: SimLoop) -> Iterator[LongestStep]:
    """Measure the callbacks of all brokers on this loop; the garbage of the test is not theirs."""
    longest = LongestStep()
    gc.collect()
    gc.disable()
    loop.on_step = longest.run
    try:
        yield longest
    finally:
        loop.on_step = None
        gc.enable()
