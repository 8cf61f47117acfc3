"""Keeps Python's garbage collector away from the modules of a Spark worker.

Spark collects garbage after each task. A collection visits the objects of all modules, of Spark, Arrow and
the client too, which takes about 50 ms: more than the rest of the work of a small micro-batch.
"""

from __future__ import annotations

import gc
import os

exempted: set[int] = set()
"""The process in which it was done; a forked process does it again."""


def exempt_modules() -> None:
    """Exempt all present objects from garbage collection; only the first call in a task's process does.

    Reference counts still free exempted objects. Only cycles among them stay, and the modules are there
    until the process ends. Processes that run no task keep the collector as it is.
    """
    from pyspark import TaskContext

    if os.getpid() in exempted or TaskContext.get() is None:
        return
    exempted.add(os.getpid())
    gc.freeze()
