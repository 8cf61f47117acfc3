"""Adapts the memory of Spark's Python processes: what the collector visits, and what malloc gives back.

Spark collects garbage after each task, and on the driver after each plan and commit. A collection visits the
objects of all modules, of Spark, Arrow and the client too, which takes up to 50 ms: more than the rest of the
work of a small micro-batch. And malloc returns freed blocks of the size of an entry to the kernel, so every
entry would pay for new pages: a quarter of the time to decode it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

REUSED_BYTES = 32 * 2**20
"""Freed blocks up to this size stay with the process; freed memory above twice as much goes back."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

prepared: dict[int, int] = {}
"""The process in which it was done, with the number of its modules; a forked process does it again."""


def prepare_worker() -> None:
    """Exempt all present objects from garbage collection and reuse freed memory, in a process of Spark.

    Later calls do nothing unless more modules are loaded by then: PySpark loads pandas at the end of a
    process's first write, which alone would cost 12 ms after each task. Reference counts still free exempted
    objects. Only cycles among them stay, and the modules are there until the process ends. The process of
    an application keeps everything as it is.
    """
    known = prepared.get(os.getpid())
    if known == len(sys.modules) or not _is_process_of_spark():
        return
    gc.freeze()
    if known is None:
        reuse_freed_memory()
    prepared[os.getpid()] = len(sys.modules)


def _is_process_of_spark() -> bool:
    """Whether the main program is a module of PySpark, as that of its workers and planning processes is."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def reuse_freed_memory() -> bool:
    """Let malloc keep freed blocks; False where the C library is not glibc and decides by itself."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, REUSED_BYTES) and mallopt(_M_TRIM_THRESHOLD, 2 * REUSED_BYTES))
