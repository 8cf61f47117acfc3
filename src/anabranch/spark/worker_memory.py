"""Adapts the memory of a Spark worker to tasks: what the collector visits, and what malloc gives back.

Spark collects garbage after each task. A collection visits the objects of all modules, of Spark, Arrow and
the client too, which takes about 50 ms: more than the rest of the work of a small micro-batch. And malloc
returns freed blocks of the size of an entry to the kernel, so every entry would pay for new pages: a quarter
of the time to decode it.
"""

from __future__ import annotations

import ctypes
import gc
import os

REUSED_BYTES = 32 * 2**20
"""Freed blocks up to this size stay with the process; freed memory above twice as much goes back."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

prepared: set[int] = set()
"""The process in which it was done; a forked process does it again."""


def prepare_worker() -> None:
    """Exempt all present objects from garbage collection and reuse freed memory, once in a task's process.

    Reference counts still free exempted objects. Only cycles among them stay, and the modules are there
    until the process ends. Processes that run no task keep everything as it is.
    """
    from pyspark import TaskContext

    if os.getpid() in prepared or TaskContext.get() is None:
        return
    prepared.add(os.getpid())
    gc.freeze()
    reuse_freed_memory()


def reuse_freed_memory() -> bool:
    """Let malloc keep freed blocks; False where the C library is not glibc and decides by itself."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, REUSED_BYTES) and mallopt(_M_TRIM_THRESHOLD, 2 * REUSED_BYTES))
